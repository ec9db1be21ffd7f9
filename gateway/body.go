package gateway

import (
	"io"
	"net/http"
	"time"
)

// timedBody ends a request whose body stops coming or takes too long in all:
// without it a client that sends a byte an hour would hold a connection for good.
// The server's own ReadTimeout would end long answers as well.
type timedBody struct {
	io.ReadCloser
	rc      *http.ResponseController
	silence time.Duration
	until   time.Time
	renewed time.Time
	ended   bool
	plain   bool // HTTP/1
}

// timed bounds the silence of r's body and the time that it may take in all.
func timed(w http.ResponseWriter, r *http.Request, silence, inAll time.Duration) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	r.Body = &timedBody{ReadCloser: r.Body, rc: http.NewResponseController(w), silence: silence, until: time.Now().Add(inAll), plain: r.ProtoMajor == 1}
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	if b.ended {
		return b.ReadCloser.Read(p) // nothing more will come, so a deadline would be the server's own watch's
	}
	// A deadline costs a little, so it is moved only when a quarter of it is gone.
	if now := time.Now(); now.Sub(b.renewed) > b.silence/4 {
		b.renewed = now
		// A connection without deadlines (a test's recorder) has no silence to bound.
		_ = b.rc.SetReadDeadline(earlier(now.Add(b.silence), b.until))
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		// From the end on the server watches the connection for the client's going; a
		// deadline that is left standing would look like it. The server of HTTP/1 takes
		// it away itself, and after a failure it must stand: what is left of the body is
		// read before the connection is closed.
		b.ended = true
		if !b.plain {
			_ = b.rc.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// unread ends a request whose answer is there and whose body has not come to its
// end. Many clients send a body as a whole before they read: they would take the
// reset of a connection that is closed in the middle of it for an answer of their
// own making and never see the refusal. So the answer goes out first, and what
// still comes is read and thrown away, within bounds: nobody holds a connection for
// good, and without a credential, by a body that never comes or never ends.
func unread(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	asked := false
	if b, ok := r.Body.(*timedBody); ok {
		r.Body = b.ReadCloser // the server looks at what kind of body it is
		if b.ended {
			return
		}
		asked = !b.renewed.IsZero()
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(restSilence))
	// A client that waits for 100 Continue sends nothing without it, and the other
	// versions of HTTP have no connection to lose.
	if r.ProtoMajor != 1 || !asked && r.Header.Get("Expect") != "" {
		return
	}
	if rc.Flush() != nil {
		return
	}
	buf := make([]byte, 8<<10)
	end := time.Now().Add(restLasts)
	for left := int64(maxRest); left > 0; {
		n, err := r.Body.Read(buf)
		if err != nil {
			return
		}
		left -= int64(n)
		now := time.Now()
		if !now.Before(end) {
			return
		}
		_ = rc.SetReadDeadline(earlier(now.Add(restSilence), end))
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
