package gateway

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// patientBody ends a request whose body stops coming: without it a client that
// sends a byte an hour would hold a connection and a slot for good. The server's
// own ReadTimeout would end long uploads and long answers as well.
type patientBody struct {
	io.ReadCloser
	rc      *http.ResponseController
	silence time.Duration
	renewed time.Time
	ended   bool
	plain   bool // HTTP/1
}

// patient bounds the silence of r's body.
func patient(w http.ResponseWriter, r *http.Request, silence time.Duration) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	r.Body = &patientBody{ReadCloser: r.Body, rc: http.NewResponseController(w), silence: silence, plain: r.ProtoMajor == 1}
}

func (b *patientBody) Read(p []byte) (int, error) {
	if b.ended {
		return b.ReadCloser.Read(p) // nothing more will come, so a deadline would be the server's own watch's
	}
	// A deadline costs a little, so it is moved only when a quarter of it is gone.
	if now := time.Now(); now.Sub(b.renewed) > b.silence/4 {
		b.renewed = now
		// A connection without deadlines (a test's recorder) has no silence to bound.
		_ = b.rc.SetReadDeadline(now.Add(b.silence))
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		// From here on the server watches the connection for the client's going; a
		// deadline that is left standing would look like it.
		b.ended = true
		if !b.plain || !errors.Is(err, io.EOF) { // at an end, the server of HTTP/1 does it itself
			_ = b.rc.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// unread bounds what is left of a body when its request has been answered. The
// server reads on before it sends an answer, to be able to use the connection
// again; without a bound anybody could hold a connection for good, and without
// a credential, by a body that never comes.
func unread(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	if b, ok := r.Body.(*patientBody); ok && b.ended {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restSilence))
}
