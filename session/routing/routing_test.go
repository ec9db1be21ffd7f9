package routing

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

const both = "application/json, text/event-stream"

// rig is a Router in front of a peer that the test plays.
type rig struct {
	*Router
	t    *testing.T
	log  output.Buffer
	sent chan string // what the peer has been told
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, sent: make(chan string, 100)}
	r.Router = New(Options{Log: ratelog.New(slog.New(slog.NewTextHandler(&r.log, nil)))})
	return r
}

func (r *rig) send(_ context.Context, message []byte) error {
	r.sent <- string(message)
	return nil
}

func (r *rig) say(messages ...string) {
	r.t.Helper()
	for _, m := range messages {
		if err := r.Deliver(r.t.Context(), []byte(m)); err != nil {
			r.t.Errorf("%s: %v", m, err)
		}
	}
}

func request(ctx context.Context, method, accept, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, "http://peer.test/", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Accept", accept)
	return req
}

// reply is what a POST came to.
type reply struct {
	resp *http.Response
	err  error
}

// post begins a POST and returns when the peer has been told its messages.
func (r *rig) post(ctx context.Context, accept, body string) <-chan reply {
	r.t.Helper()
	got := make(chan reply, 1)
	go func() {
		resp, err := r.Post(request(ctx, "POST", accept, body), r.send)
		got <- reply{resp, err}
	}()
	select {
	case <-r.sent:
	case g := <-got:
		got <- g
	}
	return got
}

// want reads a reply to its end and compares it.
func (r *rig) want(got <-chan reply, status int, contentType, body string) {
	r.t.Helper()
	g := <-got
	if g.err != nil {
		r.t.Fatal(g.err)
	}
	all, err := io.ReadAll(g.resp.Body)
	if err != nil || g.resp.StatusCode != status || g.resp.Header.Get("Content-Type") != contentType || string(all) != body {
		r.t.Errorf("%d %s %q, %v", g.resp.StatusCode, g.resp.Header.Get("Content-Type"), all, err)
	}
	_ = g.resp.Body.Close()
}

func event(messages ...string) string {
	s := ""
	for _, m := range messages {
		s += "event: message\ndata: " + m + "\n\n"
	}
	return s
}

func call(id string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"_meta":{"progressToken":` + id + `}}}`
}

func result(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"result":{"n":1.0}}` }

func progress(token string) string {
	return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + token + `}}`
}

const (
	changed  = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	sampling = `{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage"}`
	jsonType = "application/json"
	sse      = "text/event-stream"
)

// listen opens a GET stream.
func (r *rig) listen() *bufio.Reader {
	r.t.Helper()
	resp := r.Listen(request(r.t.Context(), "GET", sse, ""))
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != sse {
		r.t.Fatalf("%+v", resp)
	}
	return bufio.NewReader(resp.Body)
}

// nextData is the next message of an event stream.
func (r *rig) nextData(s *bufio.Reader) string {
	r.t.Helper()
	for {
		line, err := s.ReadString('\n')
		if err != nil {
			r.t.Fatal(err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSpace(data)
		}
	}
}

func TestAPost(t *testing.T) {
	for _, c := range []struct {
		name, accept, body string
		says               []string
		status             int
		contentType, want  string
	}{
		{"without a request is accepted", both, changed, nil, 202, "", ""},
		{"is answered with JSON when the answer comes first", both, call("1"), []string{result("1")}, 200, jsonType, result("1")},
		{"streams what comes before its answer", both, call("1"), []string{progress("1"), sampling, result("1")}, 200, sse, event(progress("1"), sampling, result("1"))},
		{"of a client that takes no events has its answer only", jsonType, call("1"), []string{progress("1"), result("1")}, 200, jsonType, result("1")},
		{"with a batch streams its answers", both, "[" + call("1") + "," + call("2") + "]", []string{result("2"), result("1")}, 200, sse, event(result("2"), result("1"))},
		{"with a batch collects them for a client that takes no events", jsonType, "[" + call("1") + "," + call("2") + "]", []string{result("2"), result("1")}, 200, jsonType, "[" + result("2") + "," + result("1") + "]"},
		{"is answered by a batch", both, call("1"), []string{"[" + progress("1") + "," + result("1") + "]"}, 200, sse, event(progress("1"), result("1"))},
		{"is answered by a rounded number", both, call("9007199254740993"), []string{result("9007199254740992")}, 200, jsonType, result("9007199254740992")},
		{"is answered by another spelling of its number", both, call("2.0"), []string{result("2")}, 200, jsonType, result("2")},
		{"is answered by its number as a string", both, call("1"), []string{result(`"1"`)}, 200, jsonType, result(`"1"`)},
		{"is answered by an error without id while nothing else is in flight", both, call("1"), []string{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}`}, 200, jsonType, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}`},
		{"is answered by a success beside error null", both, call("1"), []string{`{"error":null,"id":1,"result":{},"jsonrpc":"2.0"}`}, 200, jsonType, `{"error":null,"id":1,"result":{},"jsonrpc":"2.0"}`},
		{"does not take another's answer", both, call("1"), []string{result("2"), result("1")}, 200, jsonType, result("1")},
		{"that is no message is refused", both, "{", nil, 400, jsonType, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"wire: not valid JSON"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			got := r.post(t.Context(), c.accept, c.body)
			if strings.HasPrefix(c.body, "[") {
				<-r.sent // its second message
			}
			r.say(c.says...)
			r.want(got, c.status, c.contentType, c.want)
			if len(r.waiting)+len(r.progress)+len(r.posts)+len(r.abandoned) > 0 {
				t.Errorf("left behind: %v %v %v %v", r.waiting, r.progress, r.posts, r.abandoned)
			}
		})
	}
}

func TestAMessageOfTheServer(t *testing.T) {
	t.Run("that comes while one call is in flight goes to it", func(t *testing.T) {
		r := newRig(t)
		s := r.listen()
		got := r.post(t.Context(), both, call("1"))
		r.say(changed, result("1"), sampling)
		r.want(got, 200, sse, event(changed, result("1")))
		if m := r.nextData(s); m != sampling {
			t.Errorf("after the answer: %s", m)
		}
	})
	t.Run("that comes while two calls are in flight goes to the GET stream", func(t *testing.T) {
		r := newRig(t)
		s := r.listen()
		one, two := r.post(t.Context(), both, call("1")), r.post(t.Context(), both, call("2"))
		r.say(changed, progress("1"), result("2"), result("1"))
		r.want(one, 200, sse, event(progress("1"), result("1")))
		r.want(two, 200, jsonType, result("2"))
		if m := r.nextData(s); m != changed {
			t.Error(m)
		}
	})
	t.Run("that comes while two calls are in flight goes to the newer where nobody listens", func(t *testing.T) {
		r := newRig(t)
		one, two := r.post(t.Context(), both, call("1")), r.post(t.Context(), both, call("2"))
		r.say(changed, result("2"), result("1"))
		r.want(one, 200, jsonType, result("1"))
		r.want(two, 200, sse, event(changed, result("2")))
	})
	t.Run("does not go to the POST that opens the session", func(t *testing.T) {
		r := newRig(t)
		got := r.post(t.Context(), both, `{"jsonrpc":"2.0","id":1,"method":"initialize"}`)
		r.say(changed, result("1"))
		r.want(got, 200, jsonType, result("1"))
		if m := r.nextData(r.listen()); m != changed {
			t.Error(m)
		}
	})
	t.Run("that a POST leaves unread goes to the GET stream", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			got := r.post(t.Context(), both, call("1"))
			r.say(progress("1"), sampling)
			g := <-got
			r.say(changed)
			_ = g.resp.Body.Close()
			s := r.listen()
			for _, want := range []string{sampling, changed} {
				if m := r.nextData(s); m != want {
					t.Errorf("%s, want %s", m, want)
				}
			}
			if _, err := g.resp.Body.Read(make([]byte, 1000)); err == nil {
				// The event under way when the body was closed.
				if _, err = g.resp.Body.Read(make([]byte, 1)); err == nil {
					t.Error("a closed body goes on")
				}
			}
		})
	})
}

func TestAGetStream(t *testing.T) {
	t.Run("gives way to a newer one", func(t *testing.T) {
		r := newRig(t)
		old := r.listen()
		r.say(changed)
		if m := r.nextData(old); m != changed {
			t.Error(m)
		}
		ended := make(chan error)
		go func() {
			_, err := io.ReadAll(old)
			ended <- err
		}()
		s := r.listen()
		if err := <-ended; err != nil {
			t.Errorf("the older stream: %v", err)
		}
		r.say(sampling)
		if m := r.nextData(s); m != sampling {
			t.Error(m)
		}
	})
	t.Run("that nobody reads holds up no answer and is bounded", func(t *testing.T) {
		r := newRig(t)
		one, two := r.post(t.Context(), both, call("1")), r.post(t.Context(), both, call("2"))
		s := r.listen()
		for range 3 * MaxQueued {
			r.say(changed)
		}
		r.say(sampling, result("1"), result("2"))
		r.want(one, 200, jsonType, result("1"))
		r.want(two, 200, jsonType, result("2"))
		got := 1
		for r.nextData(s) == changed {
			got++
		}
		if got != MaxQueued || !strings.Contains(r.log.String(), "are dropped") {
			t.Errorf("%d messages were kept; %s", got, r.log.String())
		}
	})
	t.Run("keeps no more than MaxQueuedBytes", func(t *testing.T) {
		r := newRig(t)
		long := `{"jsonrpc":"2.0","method":"x","params":{"t":"` + strings.Repeat("x", MaxQueuedBytes/2) + `"}}`
		r.say(long, long, long, changed)
		if n := len(r.general.items); n != 2 || r.general.bytes > MaxQueuedBytes {
			t.Errorf("%d messages of %d bytes are kept", n, r.general.bytes)
		}
	})
	t.Run("ends with the server, after what it has said", func(t *testing.T) {
		r := newRig(t)
		s := r.listen()
		r.say(changed)
		r.End()
		if all, err := io.ReadAll(s); err != nil || string(all) != event(changed) {
			t.Errorf("%q, %v", all, err)
		}
	})
}

func TestASlowAnswer(t *testing.T) {
	for _, c := range []struct {
		name, method, accept string
		after                time.Duration
		contentType          string
	}{
		{"begins an event stream", "tools/call", both, 25 * time.Second, sse},
		{"to initialize does so earlier", "initialize", both, 4 * time.Second, sse},
		{"is JSON for a client that takes no events", "tools/call", jsonType, 0, jsonType},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				began := time.Now()
				got := r.post(t.Context(), c.accept, `{"jsonrpc":"2.0","id":1,"method":"`+c.method+`"}`)
				if c.after > 0 {
					g := <-got
					if d := time.Since(began); d != c.after {
						t.Errorf("after %s", d)
					}
					got = func() <-chan reply { ch := make(chan reply, 1); ch <- g; return ch }()
				} else {
					time.Sleep(time.Hour)
				}
				r.say(result("1"))
				want := result("1")
				if c.contentType == sse {
					want = event(want)
				}
				r.want(got, 200, c.contentType, want)
			})
		})
	}
}

func TestTwoRequestsWithOneID(t *testing.T) {
	refused := func(id string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32600,"message":"another request of this session with this id has no response yet, and their responses could not be told apart"}}`
	}
	for _, c := range []struct{ name, first, second string }{
		{"the same number", "1", "1"}, {"the same text", `"a"`, `"\u0061"`}, {"one number in two spellings", "1", "1.0"}, {"a number and its text", "1", `"1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			one := r.post(t.Context(), both, call(c.first))
			r.want(r.post(t.Context(), both, call(c.second)), 400, jsonType, refused(c.second))
			if len(r.sent) > 0 {
				t.Errorf("the server has seen %s", <-r.sent)
			}
			r.say(result(c.first))
			r.want(one, 200, jsonType, result(c.first))
			three := r.post(t.Context(), both, call(c.second))
			r.say(result(c.second))
			r.want(three, 200, jsonType, result(c.second))
		})
	}
	t.Run("in one batch", func(t *testing.T) {
		r := newRig(t)
		r.want(r.post(t.Context(), both, "["+call("1")+","+call("1")+"]"), 400, jsonType, refused("1"))
		if len(r.waiting)+len(r.progress)+len(r.sent) > 0 {
			t.Error("something is left behind")
		}
	})
	t.Run("a late response is not that of a new request", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			silent := errors.New("silent")
			one := r.post(ctx, both, call("1"))
			cancel(silent)
			if g := <-one; !errors.Is(g.err, silent) {
				t.Errorf("%v", g.err)
			}
			r.want(r.post(t.Context(), both, call("1")), 400, jsonType, refused("1"))
			r.say(result("1"))
			two := r.post(t.Context(), both, call("1"))
			r.say(`{"jsonrpc":"2.0","id":1,"result":"the new one's"}`)
			r.want(two, 200, jsonType, `{"jsonrpc":"2.0","id":1,"result":"the new one's"}`)
		})
	})
	t.Run("an id is free again some time after its request was cancelled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			ctx, cancel := context.WithCancel(t.Context())
			one := r.post(ctx, both, call("1"))
			r.want(r.post(t.Context(), both, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`), 202, "", "")
			cancel()
			<-one
			r.want(r.post(t.Context(), both, call("1")), 400, jsonType, refused("1"))
			time.Sleep(keptCancelled + time.Second)
			two := r.post(t.Context(), both, call("1"))
			r.say(result("1"))
			r.want(two, 200, jsonType, result("1"))
		})
	})
}

func TestTheEndOfTheServer(t *testing.T) {
	const gone = `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found: the server has ended"}}`
	t.Run("answers what is in flight and what comes later as a server that knows no session", func(t *testing.T) {
		r := newRig(t)
		got := r.post(t.Context(), both, call("1"))
		r.End()
		r.want(got, 404, jsonType, gone)
		r.want(r.post(t.Context(), both, call("2")), 404, jsonType, gone)
		r.want(r.post(t.Context(), both, changed), 404, jsonType, gone)
		if resp := r.Listen(request(t.Context(), "GET", sse, "")); resp.StatusCode != 404 {
			t.Errorf("%+v", resp)
		}
	})
	t.Run("breaks a stream without its answer", func(t *testing.T) {
		r := newRig(t)
		got := r.post(t.Context(), both, call("1"))
		r.say(progress("1"))
		r.End()
		g := <-got
		if all, err := io.ReadAll(g.resp.Body); !errors.Is(err, ErrEnded) || string(all) != event(progress("1")) {
			t.Errorf("%q, %v", all, err)
		}
	})
	t.Run("loses no answer that it has given", func(t *testing.T) {
		r := newRig(t)
		got := r.post(t.Context(), both, call("1"))
		r.say(progress("1"), result("1"))
		r.End()
		r.want(got, 200, sse, event(progress("1"), result("1")))
	})
}

func TestASlowReaderHoldsTheServerUpAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		got := r.post(t.Context(), both, call("1"))
		const many = 3 * MaxQueued
		said := make(chan struct{})
		go func() {
			defer close(said)
			for range many {
				r.say(progress("1"))
			}
			r.say(result("1"))
		}()
		synctest.Wait()
		select {
		case <-said:
			t.Error("nothing holds the server up")
		default:
		}
		g := <-got
		all, err := io.ReadAll(g.resp.Body)
		if err != nil || strings.Count(string(all), "data: ") != many+1 {
			t.Errorf("%d messages, %v", strings.Count(string(all), "data: "), err)
		}
		<-said
	})
}

func TestEveryMessageIsASignOfLife(t *testing.T) {
	r := newRig(t)
	signs := 0
	got := r.post(WithActivity(t.Context(), func() { signs++ }), jsonType, call("1"))
	r.say(progress("1"), progress("1"), result("1"))
	r.want(got, 200, jsonType, result("1"))
	if signs != 3 {
		t.Errorf("%d signs of life", signs)
	}
}

func TestWhatIsNoMessage(t *testing.T) {
	r := newRig(t)
	for _, line := range []string{"Server started", "{", `{"jsonrpc":"2.0","id":1}`, "[]", "7"} {
		if r.Deliver(t.Context(), []byte(line)) == nil {
			t.Errorf("%s was taken", line)
		}
	}
	r.say("\xef\xbb\xbf" + changed + "\r")
	if got := r.nextData(r.listen()); got != changed {
		t.Errorf("behind a byte order mark: %q", got)
	}
}
