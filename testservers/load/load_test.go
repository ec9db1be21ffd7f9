package load

import (
	"net/http/httptest"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/lean"
	"github.com/vancetope/mcp-lease-gateway/testservers/plainproxy"
)

func upstream(t *testing.T) *lean.Server {
	t.Helper()
	s, err := lean.Listen("127.0.0.1:0", lean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestLoadOnTheLeanServer(t *testing.T) {
	s := upstream(t)
	proxy := httptest.NewServer(plainproxy.New(&url.URL{Scheme: "http", Host: s.Addr()}))
	defer proxy.Close()
	for name, addr := range map[string]string{"directly": s.Addr(), "through the plain proxy": proxy.Listener.Addr().String()} {
		for tool, size := range map[string]int64{"small": 100, "big": 1 << 20} {
			t.Run(name+", "+tool, func(t *testing.T) {
				r, err := Run(t.Context(), Options{Addr: addr, Path: "/mcp", Sessions: 4, Calls: 25, Tool: tool, Duration: 20 * time.Second, Pids: []int{os.Getpid()}})
				if err != nil || r.FirstError != nil {
					t.Fatal(err, r.FirstError)
				}
				if r.Calls != 100 || r.Bytes < 100*size || r.P99 < r.P50 || r.P50 <= 0 || len(r.CPU) != 1 {
					t.Errorf("%+v", r)
				}
				if n := s.Sessions(); n != 0 {
					t.Errorf("%d sessions are left", n)
				}
			})
		}
		t.Run(name+", sessions and streams are held", func(t *testing.T) {
			o := Options{Addr: addr, Path: "/mcp", Sessions: 20}
			idle, err := Sessions(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			streams, err := Streams(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if s.Sessions() != 40 || s.Streams() != 20 {
				t.Errorf("%d sessions, %d streams", s.Sessions(), s.Streams())
			}
			idle.Close()
			streams.Close()
			if s.Sessions() != 0 {
				t.Errorf("%d sessions are left", s.Sessions())
			}
		})
	}
}

func TestAWrongAnswerIsAnError(t *testing.T) {
	s := upstream(t)
	r, err := Run(t.Context(), Options{Addr: s.Addr(), Path: "/mcp", Sessions: 1, Calls: 1, Duration: time.Second, Header: []string{"Mcp-Session-Id: "}})
	if err == nil && r.Errors == 0 {
		t.Errorf("%+v", r)
	}
}
