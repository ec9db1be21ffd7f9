//go:build linux

package stdio

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// mcpProgram answers each request with its own id; the methods exit and close end
// the program and its output.
func mcpProgram([]string) {
	fmt.Println("the password is swordfish")
	fmt.Print("\xef\xbb\xbf" + `{"jsonrpc":"2.0","method":"notifications/early"}` + "\r\n")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		switch m.Method {
		case "exit":
			os.Exit(3)
		case "close":
			_ = os.Stdout.Close()
			continue
		}
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n", m.ID)
	}
}

func bridge(t *testing.T, log *slog.Logger) *Bridge {
	t.Helper()
	p, err := Start(t.Context(), Command{Args: program(t, "mcp")})
	if err != nil {
		t.Fatal(err)
	}
	b := NewBridge(p, BridgeOptions{Log: log})
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// listenEarly opens a GET stream and waits for the program's early message, which
// would else go to the stream of the first call.
func listenEarly(t *testing.T, b *Bridge) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://child.test/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('{'); err != nil || line != "event: message\ndata: {" {
		t.Errorf("behind a byte order mark: %q, %v", line, err)
	}
	return resp
}

func ask(t *testing.T, b *Bridge, method, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://child.test/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := b.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// wantGone checks that the answers are a proof that the session is gone.
func wantGone(t *testing.T, b *Bridge) {
	t.Helper()
	for _, method := range []string{"POST", "GET", "DELETE"} {
		status, answer := ask(t, b, method, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		if status != 404 || !upstream.Gone(400, []byte(answer)) {
			t.Errorf("%s: %d %s", method, status, answer)
		}
	}
}

func TestABridge(t *testing.T) {
	var log output.Buffer
	b := bridge(t, slog.New(slog.NewTextHandler(&log, nil)))
	get := listenEarly(t, b)
	if status, answer := ask(t, b, "POST", "{\"jsonrpc\":\"2.0\",\n\"id\":1.50,\"method\":\"x\"}"); status != 200 || answer != `{"jsonrpc":"2.0","id":1.50,"result":{}}` {
		t.Errorf("%d %s", status, answer)
	}
	if s := log.String(); !strings.Contains(s, "is no message") || !strings.Contains(s, "bytes=25") || strings.Contains(s, "swordfish") {
		t.Errorf("the log: %s", s)
	}
	if status, answer := ask(t, b, "PUT", ""); status != 405 {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := ask(t, b, "DELETE", ""); status != 204 || answer != "" {
		t.Errorf("%d %s", status, answer)
	}
	select {
	case <-b.Gone():
	default:
		t.Error("it is not gone")
	}
	if _, err := io.ReadAll(get.Body); err != nil {
		t.Errorf("the GET stream: %v", err)
	}
	wantGone(t, b)
}

func TestABridgeWhoseProgramEnds(t *testing.T) {
	for _, how := range []string{"exit", "close"} {
		t.Run(how, func(t *testing.T) {
			b := bridge(t, nil)
			listenEarly(t, b)
			status, answer := ask(t, b, "POST", `{"jsonrpc":"2.0","id":1,"method":"`+how+`"}`)
			if status != 404 {
				t.Errorf("what was in flight: %d %s", status, answer)
			}
			<-b.Gone()
			wantGone(t, b)
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
			var exit *ExitError
			if how == "exit" && (!errors.As(b.Err(), &exit) || exit.Code != 3) {
				t.Errorf("%v", b.Err())
			}
		})
	}
}

func TestABridgeRefusesAMessageThatIsTooLong(t *testing.T) {
	b := bridge(t, nil)
	body := `{"jsonrpc":"2.0","id":1,"method":"x","params":{"t":"` + strings.Repeat("x", MaxLine) + `"}}`
	req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://child.test/", strings.NewReader(body))
	if _, err := b.RoundTrip(req); !errors.Is(err, ErrTooLong) {
		t.Errorf("%v", err)
	}
	if status, answer := ask(t, b, "POST", `{"jsonrpc":"2.0","id":1,"method":"x"}`); status != 200 {
		t.Errorf("the id is not free: %d %s", status, answer)
	}
}

// stuck is a program that says what the test wants and cannot be ended.
type stuck struct {
	lines chan error // nil is a line that is no message
}

func (s stuck) Send(context.Context, []byte) error { return nil }
func (s stuck) Err() error                         { return nil }
func (s stuck) Close(context.Context) error        { return errors.New("still there") }

func (s stuck) Next(ctx context.Context) ([]byte, error) {
	select {
	case err := <-s.lines:
		return []byte("Listening on stdio"), err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestABridgeSaysWhenTheEndIsNotConfirmed(t *testing.T) {
	b := newBridge(stuck{}, BridgeOptions{})
	if status, answer := ask(t, b, "DELETE", ""); status != 503 || !strings.Contains(answer, "not confirmed") {
		t.Errorf("%d %s", status, answer)
	}
}

func TestLinesThatAreNoMessageDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log output.Buffer
		p := stuck{lines: make(chan error)}
		b := newBridge(p, BridgeOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
		p.lines <- ErrTooLong
		for range 1000 {
			p.lines <- nil
		}
		p.lines <- io.EOF
		<-b.Gone()
		s := log.String()
		if n := strings.Count(s, "is no message"); n == 0 || n > 50 || !strings.Contains(s, "over 32 MiB") || strings.Contains(s, "Listening") {
			t.Errorf("%d lines: %s", n, s)
		}
		_ = b.Close(t.Context())
	})
}
