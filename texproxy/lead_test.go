package texproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// early is a pod whose uploads run ahead as soon as they can, in front of a
// tex2pdf that tells of each submit when its first byte and when its end comes.
type early struct {
	*pod
	up    *upstream
	store *fakeStore
	begun chan struct{}
	cut   chan error // one whose end never came
}

func newEarly(t *testing.T, atMost time.Duration, opts ...podOption) *early {
	t.Helper()
	p, up, store := onePod(t, nil, opts...)
	p.leading = leading{from: 256 << 10, within: time.Hour, atMost: atMost}
	e := &early{pod: p, up: up, store: store, begun: make(chan struct{}, 8), cut: make(chan error, 8)}
	up.script(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			first := make([]byte, 1)
			io.ReadFull(r.Body, first)
			e.begun <- struct{}{}
			rest, err := io.ReadAll(r.Body)
			if err != nil {
				e.cut <- err
				panic(http.ErrAbortHandler)
			}
			r.Body = io.NopCloser(bytes.NewReader(append(first, rest...)))
		}
		up.tex2pdf(w, r)
	})
	return e
}

// whole is how many submits the service got to their end.
func (e *early) whole() int {
	e.up.mu.Lock()
	defer e.up.mu.Unlock()
	return len(e.up.bodies)
}

// sender is a client that sends its upload as the test says.
type sender struct {
	t    *testing.T
	conn net.Conn
	body []byte
	sent int
}

func (e *early) sender(t *testing.T) *sender {
	t.Helper()
	contentType, body := zipForm(t, bytes.Repeat([]byte("0123456789abcdef"), 1<<17))
	conn, err := net.Dial("tcp", e.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /tex/acme/thesis/@u1/tex2pdf/tex2pdf HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", contentType, len(body))
	return &sender{t: t, conn: conn, body: body}
}

// send sends all but the last so many bytes.
func (s *sender) send(left int) {
	s.t.Helper()
	n, err := s.conn.Write(s.body[s.sent : len(s.body)-left])
	if s.sent += n; err != nil {
		s.t.Fatal(err)
	}
}

// arrived waits until all that was sent is on the pod's disk.
func (e *early) arrived(s *sender) {
	s.t.Helper()
	eventually(s.t, "what was sent is on the disk", func() bool { return spooled(e.pod) == int64(s.sent) })
}

func (s *sender) reply() reply {
	s.t.Helper()
	s.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(s.conn), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(body)}
}

func (e *early) released(t *testing.T) {
	t.Helper()
	eventually(t, "the slot is given back", func() bool { return len(e.store.held()) == 0 })
}

func TestAFastUploadGoesUpWhileItComes(t *testing.T) {
	e := newEarly(t, time.Minute)
	s := e.sender(t)
	s.send(1)
	<-e.begun // the service has bytes of an upload whose last is still to come
	wantHeld(t, e.store, 1)
	s.send(0)
	if r := s.reply(); r.status != 200 || r.json(t)["job_id"] != "job-1" {
		t.Errorf("the submit answered %d %s", r.status, r.body)
	}
	wantHeld(t, e.store, 1)
	if !bytes.Equal(e.up.bodies[0], s.body) || len(e.up.seen()) != 1 {
		t.Errorf("the service got %d requests, the first of %d bytes; want one of %d", len(e.up.seen()), len(e.up.bodies[0]), len(s.body))
	}
	if trials, usual := e.store.count("trial"), e.store.count("acquire"); trials != 1 || usual != 0 {
		t.Errorf("%d early and %d usual acquires, want one early", trials, usual)
	}
	if h := e.store.held()[0]; h.Payload[payloadJob] != "job-1" || h.PodBound {
		t.Errorf("the holder is %+v", h)
	}
}

func TestAnUploadThatStandsStillGivesItsSlotBack(t *testing.T) {
	e := newEarly(t, 50*time.Millisecond)
	s := e.sender(t)
	s.send(len(s.body) / 2)
	<-e.begun
	if err := <-e.cut; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the early submit ended with %v; want one that is seen to be incomplete", err)
	}
	e.released(t)
	mustSubmit(t, e.url) // the project's one slot
	e.up.set("job-1", "completed")
	get(t, e.url+"/tex2pdf/status/job-1")
	wantHeld(t, e.store, 0)

	s.send(1) // it comes fast again, and has had its try
	e.arrived(s)
	if n := e.store.count("trial"); n != 1 {
		t.Errorf("%d early acquires, want one for each upload", n)
	}
	wantHeld(t, e.store, 0)
	s.send(0)
	if r := s.reply(); r.status != 200 || r.json(t)["job_id"] != "job-2" {
		t.Errorf("the submit answered %d %s", r.status, r.body)
	}
	wantHeld(t, e.store, 1)
	if n := e.whole(); n != 2+1 { // the other's submit, its poll, and this
		t.Errorf("the service got %d whole requests, want 3", n)
	}
	if last := e.up.bodies[2]; !bytes.Equal(last, s.body) {
		t.Errorf("the service got %d other bytes than the client sent", len(last))
	}
}

func TestAClientThatLeavesWhileItsUploadRunsAhead(t *testing.T) {
	e := newEarly(t, time.Minute)
	s := e.sender(t)
	s.send(1)
	<-e.begun
	wantHeld(t, e.store, 1)
	s.conn.Close()
	<-e.cut
	e.released(t)
	eventually(t, "its room is free", func() bool { return spooled(e.pod) == 0 })
	if e.whole() != 0 || e.store.count("acquire") != 0 {
		t.Errorf("%d whole submits and %d usual acquires, want none", e.whole(), e.store.count("acquire"))
	}
}

func TestNoSlotForTheEarlyTry(t *testing.T) {
	t.Run("is told in the usual way when the upload is whole", func(t *testing.T) {
		e := newEarly(t, time.Minute)
		mustSubmit(t, e.url)
		s := e.sender(t)
		s.send(1)
		eventually(t, "it is tried", func() bool { return e.store.count("trial") == 1 })
		e.arrived(s)
		s.send(0)
		if r := s.reply(); r.status != 429 || !strings.Contains(r.body, "LEASE_BUSY: the project limit") || r.header.Get("Retry-After") == "" {
			t.Errorf("the submit answered %d %s", r.status, r.body)
		}
		if n := len(e.up.seen()); n != 1 {
			t.Errorf("the service got %d requests, want the other's only", n)
		}
	})
	t.Run("does not matter where there is one when the upload is whole", func(t *testing.T) {
		e := newEarly(t, time.Minute)
		id := mustSubmit(t, e.url)
		s := e.sender(t)
		s.send(1)
		eventually(t, "it is tried", func() bool { return e.store.count("trial") == 1 })
		e.up.set(id, "completed")
		get(t, e.url+"/tex2pdf/status/"+id)
		s.send(0)
		if r := s.reply(); r.status != 200 {
			t.Errorf("the submit answered %d %s", r.status, r.body)
		}
		wantHeld(t, e.store, 1)
	})
}

func TestTheStoreIsDownAtTheEarlyTry(t *testing.T) {
	for name, back := range map[string]bool{"and back later": true, "and stays so": false} {
		t.Run(name, func(t *testing.T) {
			e := newEarly(t, time.Minute)
			e.store.setDown(true)
			s := e.sender(t)
			s.send(1)
			eventually(t, "it is tried", func() bool { return e.store.count("trial") == 1 })
			e.arrived(s)
			e.store.setDown(!back)
			s.send(0)
			r := s.reply()
			if back && r.status != 200 {
				t.Errorf("the submit answered %d %s", r.status, r.body)
			}
			if !back && (r.status != 503 || !strings.Contains(r.body, "LEASE_UNAVAILABLE") || len(e.up.seen()) != 0) {
				t.Errorf("the submit answered %d %s, and the service got %d requests", r.status, r.body, len(e.up.seen()))
			}
		})
	}
}

// asked counts how often a definition is resolved.
type asked struct {
	definition.Resolver
	n *atomic.Int32
}

func (a asked) Resolve(ctx context.Context, tenant, project, name string) (*definition.Definition, error) {
	a.n.Add(1)
	return a.Resolver.Resolve(ctx, tenant, project, name)
}

func TestALeaseThatNobodyDefinedIsRefusedOnceByTheEarlyTry(t *testing.T) {
	var n atomic.Int32
	e := newEarly(t, time.Minute, func(o *Options, _ *pod) { o.Definitions = asked{o.Definitions, &n} })
	e.settings.lease[""] = "typo"
	s := e.sender(t)
	s.send(1)
	eventually(t, "it is tried", func() bool { return n.Load() == 1 })
	e.arrived(s)
	s.send(0)
	if r := s.reply(); r.status != 503 || !strings.Contains(r.body, "typo") || len(e.up.seen()) != 0 {
		t.Errorf("answered %d %s, and the service got %d requests", r.status, r.body, len(e.up.seen()))
	}
	if n.Load() != 1 {
		t.Errorf("the definition was asked for %d times, and each counts as a refusal", n.Load())
	}
}

func TestARevocationWhileTheUploadRunsAhead(t *testing.T) {
	e := newEarly(t, time.Minute)
	s := e.sender(t)
	s.send(1)
	<-e.begun
	for _, h := range e.store.revoke(lease.ReasonRevoke) {
		if err := e.OnRevoked(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	<-e.cut
	e.arrived(s) // its client is still heard
	s.send(0)
	wantLost(t, s.reply(), "", "operator")
	if e.whole() != 0 || e.store.count("acquire") != 0 {
		t.Errorf("a revoked submit was made again: %d whole, %d acquires", e.whole(), e.store.count("acquire"))
	}
	wantHeld(t, e.store, 0)
}

func TestAServiceThatAnswersBeforeItHasTheUpload(t *testing.T) {
	for name, c := range map[string]struct {
		status      int
		contentType string
		body        string
		held        int
	}{
		"refuses its size":            {413, "text/html", "<html>too large</html>", 0},
		"refuses its key":             {401, "application/json", `{"detail":  "Invalid API key"}`, 0},
		"refuses it at length":        {400, "text/plain", strings.Repeat("no. ", 1<<19), 0},
		"says that it has failed":     {200, "application/json", `{"job_id":"j","status":"failed"}`, 0},
		"names a job":                 {200, "application/json", `{"job_id":"j","status":"queued"}`, 1},
		"accepts it and names no job": {202, "text/plain", "thanks", 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEarly(t, time.Minute)
			e.up.script(func(w http.ResponseWriter, r *http.Request) {
				io.ReadFull(r.Body, make([]byte, 1))
				w.Header().Set("Content-Type", c.contentType)
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			s := e.sender(t)
			s.send(1)
			if c.held == 0 {
				eventually(t, "the slot is given back although the client still sends", func() bool { return e.store.count("release") == 1 })
			}
			s.send(0)
			if r := s.reply(); r.status != c.status || r.body != c.body || r.header.Get("Content-Type") != c.contentType {
				t.Errorf("the client got %d %s and %d bytes, want the service's own answer", r.status, r.header.Get("Content-Type"), len(r.body))
			}
			wantHeld(t, e.store, c.held)
			if n := len(e.up.seen()); n != 1 {
				t.Errorf("the service got %d submits, want one", n)
			}
		})
	}
}

func TestAnEarlyJobIsKeptWhenItsClientLeaves(t *testing.T) {
	e := newEarly(t, time.Minute)
	e.up.script(func(w http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, make([]byte, 1))
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"job_id":"j","status":"queued"}`)
	})
	s := e.sender(t)
	s.send(1)
	eventually(t, "the job is recorded", func() bool { return len(e.jobs.all()) == 1 })
	s.conn.Close()
	eventually(t, "the request has ended", func() bool { n, _ := e.open.Taken(); return n == 0 })
	if h := e.store.held(); len(h) != 1 || h[0].Payload[payloadJob] != "j" {
		t.Errorf("the holders are %+v; want the job's", h)
	}
}

func TestAnEarlyJobIsRecordedAlthoughItsClientLeaves(t *testing.T) {
	e := newEarly(t, time.Minute)
	e.up.script(func(w http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, make([]byte, 1))
		e.store.setDown(true)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"job_id":"j","status":"queued"}`)
	})
	s := e.sender(t)
	s.send(1)
	eventually(t, "the job is to be recorded", func() bool { return e.store.count("payload") > 0 })
	s.conn.Close()
	n := e.store.count("payload")
	eventually(t, "that goes on without the client", func() bool { return e.store.count("payload") > n+2 })
	e.store.setDown(false)
	eventually(t, "the request has ended", func() bool { n, _ := e.open.Taken(); return n == 0 })
	if h := e.store.held(); len(h) != 1 || h[0].Payload[payloadJob] != "j" {
		t.Errorf("the holders are %+v; want the job's", h)
	}
}

func TestAServiceThatOnlyBeginsToAnswerEarly(t *testing.T) {
	e := newEarly(t, 50*time.Millisecond)
	var n atomic.Int32
	e.up.script(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) > 1 {
			e.up.tex2pdf(w, r)
			return
		}
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex()
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"job_id":`)
		rc.Flush()
		io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	})
	s := e.sender(t)
	s.send(1)
	eventually(t, "the slot is given back", func() bool { return e.store.count("release") == 1 })
	s.send(0)
	if r := s.reply(); r.status != 200 || n.Load() != 2 {
		t.Errorf("after %d submits the client got %d %s", n.Load(), r.status, r.body)
	}
	wantHeld(t, e.store, 1)
}

func TestAServiceThatCannotBeReachedEarly(t *testing.T) {
	e := newEarly(t, time.Minute)
	e.up.Close()
	s := e.sender(t)
	s.send(1)
	eventually(t, "the slot is given back although the client still sends", func() bool { return e.store.count("release") == 1 })
	s.send(0)
	if r := s.reply(); r.status != 502 || !strings.Contains(r.body, "UPSTREAM_UNAVAILABLE") {
		t.Errorf("the submit answered %d %s", r.status, r.body)
	}
	wantHeld(t, e.store, 0)
}

func TestAServiceThatBreaksOffEarlyGetsTheUploadInTheUsualWay(t *testing.T) {
	e := newEarly(t, time.Minute)
	var n atomic.Int32
	e.up.script(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			io.ReadFull(r.Body, make([]byte, 1))
			panic(http.ErrAbortHandler)
		}
		e.up.tex2pdf(w, r)
	})
	s := e.sender(t)
	left := len(s.body) / 2
	eventually(t, "the slot is given back although the client still sends", func() bool {
		s.send(left) // a connection is seen to be gone when more is written
		left = max(left-64<<10, 1)
		return e.store.count("release") == 1
	})
	s.send(0)
	if r := s.reply(); r.status != 200 || n.Load() != 2 {
		t.Errorf("the submit answered %d %s", r.status, r.body)
	}
	wantHeld(t, e.store, 1)
}

func TestAnUploadThatBreaksTheSpoolWhileItRunsAhead(t *testing.T) {
	var limit atomic.Int64
	limit.Store(1 << 30)
	e := newEarly(t, time.Minute, func(o *Options, _ *pod) {
		o.Limits = func() config.Limits { return config.Limits{PerPod: 10000, Spool: limit.Load()} }
	})
	s := e.sender(t)
	s.send(len(s.body) / 4)
	<-e.begun
	e.arrived(s)
	limit.Store(int64(3 * len(s.body))) // room for one upload, and this one has most of it
	e.spool.Take(quota.Of("acme", "", "u2"), int64(len(s.body))/2)
	defer e.spool.Give(quota.Of("acme", "", "u2"), int64(len(s.body))/2)
	s.send(1)
	<-e.cut
	e.released(t)
	s.send(0)
	if r := s.reply(); r.status != 503 || !strings.Contains(r.body, "limits.spool") {
		t.Errorf("the upload answered %d %s", r.status, r.body)
	}
	if e.whole() != 0 {
		t.Error("a broken upload was submitted")
	}
}

func TestUploadsThatDoNotRunAhead(t *testing.T) {
	t.Run("a slow one takes no slot before its last byte", func(t *testing.T) {
		e := newEarly(t, time.Minute)
		e.leading.within = 1 // however fast this machine is
		s := e.sender(t)
		for left := len(s.body) / 2; left > 1; left /= 2 {
			s.send(left)
			e.arrived(s)
		}
		s.send(1)
		e.arrived(s)
		if n := e.store.callCount(); n != 0 || len(e.up.seen()) != 0 {
			t.Errorf("all but a byte made %d store calls and %d requests; want none", n, len(e.up.seen()))
		}
		s.send(0)
		if r := s.reply(); r.status != 200 || e.store.count("trial") != 0 {
			t.Errorf("the submit answered %d %s after %d early acquires", r.status, r.body, e.store.count("trial"))
		}
	})
	t.Run("one of unknown length", func(t *testing.T) {
		e := newEarly(t, time.Minute)
		if r := do(t, request1(t, "POST", e.url+"/tex2pdf", &zeroReader{4 << 20})); r.status != 200 || e.store.count("trial") != 0 {
			t.Errorf("the submit answered %d %s after %d early acquires", r.status, r.body, e.store.count("trial"))
		}
	})
	t.Run("one that is too large", func(t *testing.T) {
		e := newEarly(t, time.Minute)
		if r := do(t, request1(t, "POST", e.url+"/tex2pdf", zeros(60<<20))); r.status != 413 || e.store.callCount() != 0 || len(e.up.seen()) != 0 {
			t.Errorf("the submit answered %d; %d store calls, %d requests", r.status, e.store.callCount(), len(e.up.seen()))
		}
	})
}

func TestWhichUploadsPromiseTheirRestSoon(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		here, length int64
		took         time.Duration
		want         bool
	}{
		"50 MB at 1 Gbit/s":                      {mib, 50 * mib, 8 * time.Millisecond, true},
		"50 MB at 100 Mbit/s":                    {mib, 50 * mib, 84 * time.Millisecond, false},
		"the last second at 100 Mbit/s":          {39 * mib, 50 * mib, 3276 * time.Millisecond, true},
		"too little has come":                    {mib - 1, 50 * mib, time.Microsecond, false},
		"too little is to come":                  {50*mib - 1, 50 * mib, time.Millisecond, false},
		"a slow one whose last MiB is to come":   {49 * mib, 50 * mib, 98 * time.Second, false},
		"a small one":                            {mib, mib, time.Millisecond, false},
		"the longest there is does not overflow": {1 << 40, 1 << 42, 24 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := usualLeading.promises(c.here, c.length, c.took); got != c.want {
				t.Errorf("promises is %v", got)
			}
		})
	}
}

func TestAnUploadStaysUntilItsLastReaderHasEnded(t *testing.T) {
	s, err := newSpool(t.TempDir(), func() int64 { return 1 << 30 })
	if err != nil {
		t.Fatal(err)
	}
	u := &upload{spool: s}
	u.hold()
	u.held = 100 << 10
	s.Take(u.owner.sharer(), u.held)
	if err := u.write(bytes.Repeat([]byte("x"), 100<<10)); err != nil {
		t.Fatal(err)
	}
	r := u.open(t.Context())
	u.drop()
	if n, err := r.Read(make([]byte, 10)); n != 10 || err != nil {
		t.Errorf("a reader lost its file: %d, %v", n, err)
	}
	for range 2 { // net/http may close a body twice
		r.Close()
	}
	if _, err := r.Read(make([]byte, 10)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed reader still reads: %v", err)
	}
	if n, _ := s.Taken(); n != 0 || len(s.spares.files) != 1 {
		t.Errorf("%d bytes taken and %d spare files, want 0 and 1", n, len(s.spares.files))
	}
}

func TestSpareFiles(t *testing.T) {
	file := func(t *testing.T) *os.File {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	closed := func(f *os.File) bool { _, err := f.Stat(); return errors.Is(err, os.ErrClosed) }
	t.Run("are few, not large, and kept for a moment", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var s spares
			var all []*os.File
			for range sparesAtMost + 1 {
				all = append(all, file(t))
				s.put(all[len(all)-1], 1)
			}
			if closed(all[0]) || closed(all[1]) || !closed(all[2]) {
				t.Error("there are more spare files than may be, or fewer")
			}
			if got := s.take(); got != all[1] {
				t.Error("the last one in is not the first one out")
			}
			large := file(t)
			if s.put(large, spareSize+1); !closed(large) {
				t.Error("a large file is kept")
			}
			time.Sleep(spareFor + 1)
			synctest.Wait()
			if !closed(all[0]) || closed(all[1]) || s.take() != nil {
				t.Error("a spare file is kept for ever, or one that is in use was closed")
			}
			s.put(all[1], 1)
			if s.close(nil); !closed(all[1]) {
				t.Error("a spare file outlives its pod")
			}
		})
	})
	t.Run("show nothing of the upload before", func(t *testing.T) {
		e := newEarly(t, time.Minute)
		for i, n := range []int{300 << 10, 100 << 10} {
			body := bytes.Repeat([]byte{byte('a' + i)}, n)
			do(t, request1(t, "POST", e.as("acme", fmt.Sprint("p", i), "u")+"/tex2pdf", bytes.NewReader(body)))
			if !bytes.Equal(e.up.bodies[i], body) {
				t.Errorf("upload %d arrived as other bytes", i)
			}
		}
	})
}
