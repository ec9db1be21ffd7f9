package gateway

import (
	"net/http"
	"sync"
	"time"
)

// maxPart is how many bytes of an answer a stream of HTTP/2 has to take within
// the time that it may stall.
const maxPart = 64 << 10

// cutter cuts an answer at a time, and never after its handler has returned: its
// connection is another request's then, and its stream nobody's.
type cutter struct {
	rc *http.ResponseController

	mu    sync.Mutex
	ended bool
}

// after cuts the answer after d; the timer may be stopped and reset.
func (c *cutter) after(d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.ended {
			_ = c.rc.SetWriteDeadline(time.Unix(1, 0))
		}
	})
}

// end says that the handler returns.
func (c *cutter) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// streamStall cuts a stream of HTTP/2 whose client leaves no room for its answer.
// The connection below goes on then, so its own bound says nothing of it.
type streamStall struct {
	cutter
	most  time.Duration
	timer *time.Timer
}

func newStreamStall(w http.ResponseWriter, most time.Duration) *streamStall {
	s := &streamStall{cutter: cutter{rc: http.NewResponseController(w)}, most: most}
	s.timer = s.after(most)
	s.timer.Stop()
	return s
}

// write writes p in parts, each within the time.
func (s *streamStall) write(w http.ResponseWriter, p []byte) (int, error) {
	written := 0
	for {
		part := p[written:min(len(p), written+maxPart)]
		s.timer.Reset(s.most)
		n, err := w.Write(part)
		s.timer.Stop()
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

func (s *streamStall) flush() error {
	s.timer.Reset(s.most)
	defer s.timer.Stop()
	return s.rc.Flush()
}

// finish bounds what the server writes after the handler has returned.
func (s *streamStall) finish() {
	s.end()
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.most))
}
