package session

import (
	"testing"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// A client that has had a stream takes every refusal of the next one for the end of
// its session, and some close at it.
func TestAStreamOfALostSessionStandsBy(t *testing.T) {
	lose := func(t *testing.T) (*rig, string, *stream) {
		t.Helper()
		r := newRig(t)
		r.caller.Store(reopener())
		id := r.open()
		r.begin("GET", id, "").close()
		r.engine.revoke(lease.ReasonIdle)
		r.do("POST", id, call(1, "x")).told(t, "idle")
		s := r.begin("GET", id, "")
		if s.resp.StatusCode != 200 || s.resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("HTTP %d, %q", s.resp.StatusCode, s.resp.Header.Get("Content-Type"))
		}
		return r, id, s
	}
	ends := func(t *testing.T, s *stream) {
		t.Helper()
		if rest, err := s.rest(); err != nil || rest != "" {
			t.Errorf("%q, %v", rest, err)
		}
	}
	t.Run("and ends when a call has opened it again", func(t *testing.T) {
		r, id, s := lose(t)
		r.do("POST", id, call(2, "x")).want(t, 200, 0, "")
		ends(t, s)
		next := r.begin("GET", id, "")
		r.up.push <- "data: {}\n\n"
		if line, err := next.br.ReadString('\n'); err != nil || line != "data: {}\n" {
			t.Errorf("the next stream is not the upstream's: %q, %v", line, err)
		}
	})
	t.Run("and ends with a DELETE", func(t *testing.T) {
		r, id, s := lose(t)
		if a := r.do("DELETE", id, ""); a.status != 204 {
			t.Errorf("%+v", a)
		}
		ends(t, s)
	})
	t.Run("and ends when the gateway stops", func(t *testing.T) {
		r, _, s := lose(t)
		if err := r.proxy.Drain(t.Context(), false); err != nil {
			t.Error(err)
		}
		ends(t, s)
	})
}
