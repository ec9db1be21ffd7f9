package session

import (
	"net/http"
	"time"
)

// standbyLook is how often a stream that stands by looks whether its session has
// been opened again.
const standbyLook = 500 * time.Millisecond

// standBy serves the GET of a lost session that can be opened again: a stream on
// which nothing comes, and which ends when the session has been opened, so that the
// client asks for the next one, the upstream's. It is for clients that have had a
// stream: one that is refused the next takes its session for gone and closes (go-sdk,
// at every other status).
func (v *visit) standBy(x *exchange) {
	h := v.w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	x.Listen()
	x.Begin(http.StatusOK, true)
	x.Watch()
	defer x.Unwatch()
	look := time.NewTicker(standbyLook)
	defer look.Stop()
	for v.s.isLost() && !v.p.draining.Load() {
		select {
		case <-look.C:
		case <-v.r.Context().Done():
			return
		}
	}
}
