package insights

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Bounds of one stream of live updates.
const (
	keepAlive    = 15 * time.Second
	writeTimeout = 10 * time.Second
	streamLife   = time.Hour // then the browser comes again by itself
)

// live streams the page's middle, rendered, whenever something has changed: a
// slot that is freed shows within two ticks. It ends when the key is withdrawn.
func (p *Page) live(w http.ResponseWriter, r *http.Request) {
	tenant, ok := tenantOf(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	s, ok := p.read(r, tenant)
	if !ok || !s.in() {
		http.Error(w, "sign in", http.StatusForbidden)
		return
	}
	q, err := readFilter(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !p.watchers.enter(tenant) {
		w.Header().Set("Retry-After", "30")
		http.Error(w, "too many pages are watching; reload by hand", http.StatusServiceUnavailable)
		return
	}
	defer p.watchers.leave(tenant)
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	st := &stream{w: w, c: http.NewResponseController(w)}
	// The connection may serve another request, which must not meet our deadline.
	defer func() { _ = st.c.SetWriteDeadline(time.Time{}) }()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if st.send("retry: 2000\n\n") != nil {
		return
	}
	u := &updates{page: p, stream: st, tenant: tenant, filter: q, last: r.URL.Query().Get("version")}
	tick := time.NewTicker(p.opt.Every)
	defer tick.Stop()
	for {
		s, ok := p.read(r, tenant)
		if !ok || !s.in() {
			_ = st.event("signed-out", "")
			return
		}
		if u.look(ctx, s) != nil {
			return // the browser is gone, or the stream's time is over
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// updates is what one browser has been sent.
type updates struct {
	page    *Page
	stream  *stream
	tenant  string
	filter  Filter
	last    string // version of the middle that the browser shows
	failing bool   // and it knows so
}

// look sends what has changed since the last look, and now and then that nothing
// has.
func (u *updates) look(ctx context.Context, s session) error {
	v, err := u.page.views.look(ctx, u.tenant, u.filter)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !u.failing:
		u.failing = true
		u.page.opt.Log.Warn("live updates cannot look", "error", err)
		return u.stream.event("failing", "")
	case err == nil && (u.failing || v.Version != u.last):
		u.failing, u.last = false, v.Version
		var html bytes.Buffer
		if err := pages.ExecuteTemplate(&html, "middle", leasesPage{frame: u.page.frame(u.tenant, s), View: v, Filter: u.filter}); err != nil {
			return err
		}
		return u.stream.event("changed", html.String())
	case time.Since(u.stream.sent) >= keepAlive:
		return u.stream.send(": still here\n\n")
	}
	return nil
}

// watchers counts live updates.
type watchers struct {
	most int

	mu  sync.Mutex
	all int
	of  map[string]int // by tenant
}

func (w *watchers) enter(tenant string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all >= w.most || w.of[tenant] >= max(1, w.most/4) {
		return false
	}
	w.all++
	w.of[tenant]++
	return true
}

func (w *watchers) leave(tenant string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all--
	if w.of[tenant]--; w.of[tenant] == 0 {
		delete(w.of, tenant)
	}
}

// stream writes server-sent events, none of which may block for long.
type stream struct {
	w    http.ResponseWriter
	c    *http.ResponseController
	sent time.Time
}

func (s *stream) event(name, data string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "event: %s\n", name)
	for line := range strings.Lines(data) {
		fmt.Fprintf(&b, "data: %s\n", strings.TrimRight(line, "\r\n"))
	}
	if data == "" {
		b.WriteString("data:\n")
	}
	b.WriteString("\n")
	return s.send(b.String())
}

func (s *stream) send(text string) error {
	s.sent = time.Now()
	// Not every writer knows deadlines; those that do must not hang.
	_ = s.c.SetWriteDeadline(s.sent.Add(writeTimeout))
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.c.Flush()
}
