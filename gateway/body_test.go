package gateway

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// deadlines is a connection that remembers its read deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	at time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.at = t
	return nil
}

// From a body's end on, the connection's read deadline is the server's own: its
// watch for the client's going would take a standing one for that.
func TestABodysEndLeavesNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest("POST", "/", strings.NewReader("body"))
		timed(w, r, time.Minute, time.Hour)
		if _, err := r.Body.Read(make([]byte, 2)); err != nil || !w.at.Equal(time.Now().Add(time.Minute)) {
			t.Fatalf("%v, the deadline is %v", err, w.at)
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Fatal(err)
		}
		w.at = time.Time{} // as the server does at the end of a body
		time.Sleep(time.Minute)
		if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF || !w.at.IsZero() {
			t.Errorf("%d, %v, the deadline is %v", n, err, w.at)
		}
		unread(w, r)
		if !w.at.IsZero() {
			t.Errorf("the deadline of an ended body is %v", w.at)
		}
	})
}
