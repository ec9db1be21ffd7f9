package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Stats is what /stats shows.
type Stats struct {
	Live                int       `json:"live"`
	Peak                int       `json:"peak"`
	Opened              int       `json:"opened"`
	Deleted             int       `json:"deleted"`        // by the client
	DeleteRequests      int       `json:"deleteRequests"` // with credentials and a living session
	Ended               int       `json:"ended"`          // by the server
	Refused             int       `json:"refused"`        // over MaxSessions
	Calls               int       `json:"calls"`
	Streams             int       `json:"streams"` // open GET streams
	Pings               int       `json:"pings"`
	Pongs               int       `json:"pongs"`
	Unauthorized        int       `json:"unauthorized"`
	UnauthorizedDeletes int       `json:"unauthorizedDeletes"`
	Sessions            []Session `json:"sessions"` // oldest first
}

// Session is a living one.
type Session struct {
	ID      string `json:"id"`
	Client  string `json:"client"` // clientInfo.name of its initialize
	AgeMs   int64  `json:"ageMs"`
	IdleMs  int64  `json:"idleMs"`
	Calls   int    `json:"calls"`
	Streams int    `json:"streams"`
	Page    string `json:"page,omitempty"`
}

// Stats counts now.
func (s *Server) Stats() Stats {
	st, _ := s.snapshot()
	return st
}

func (s *Server) snapshot() (Stats, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.count
	st.Live = len(s.sessions)
	st.Sessions = make([]Session, 0, len(s.sessions))
	for _, e := range slices.SortedFunc(maps.Values(s.sessions), func(a, b *session) int { return a.opened.Compare(b.opened) }) {
		st.Streams += len(e.streams)
		st.Sessions = append(st.Sessions, Session{
			ID: e.id, Client: e.client, Calls: e.calls, Streams: len(e.streams), Page: e.page,
			AgeMs: time.Since(e.opened).Milliseconds(), IdleMs: time.Since(e.used).Milliseconds(),
		})
	}
	return st, s.changed
}

// Wait returns the first Stats for which ok holds, or the last with ctx's error.
func (s *Server) Wait(ctx context.Context, ok func(Stats) bool) (Stats, error) {
	for {
		st, changed := s.snapshot()
		if ok(st) {
			return st, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return st, ctx.Err()
		}
	}
}

func (s *Server) serveStats(w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	st := s.Stats()
	if q := r.URL.Query(); q.Has("live") {
		n, err := strconv.Atoi(q.Get("live"))
		timeout := 10 * time.Second
		if err == nil && q.Has("timeout") {
			timeout, err = time.ParseDuration(q.Get("timeout"))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		if st, err = s.Wait(ctx, func(st Stats) bool { return st.Live == n }); err != nil {
			status = http.StatusRequestTimeout
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(st)
}

// Control is what /control takes. Absent members change nothing.
type Control struct {
	End      []string        `json:"end"`      // session ids, or "all"
	Behavior json.RawMessage `json:"behavior"` // members of Behavior
}

func (s *Server) serveControl(w http.ResponseWriter, r *http.Request) {
	var c Control
	err := decodeStrict(r.Body, &c)
	if err == nil && len(c.Behavior) > 0 {
		s.Set(func(b *Behavior) {
			next := *b
			next.Faults = nil // replaced, not merged: maps are shared with readers
			if err = decodeStrict(bytes.NewReader(c.Behavior), &next); err != nil {
				return
			}
			if next.Faults == nil {
				next.Faults = b.Faults
			}
			*b = next
		})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ended := 0
	switch {
	case slices.Contains(c.End, "all"):
		ended = s.End()
	case len(c.End) > 0:
		ended = s.End(c.End...)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]int{"ended": ended})
}

// decodeStrict refuses what a typing error would make of a member's name.
func decodeStrict(r io.Reader, v any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	return d.Decode(v)
}
