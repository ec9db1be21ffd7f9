package h1

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Requests that announce much and send little, from clients that nobody knows,
// have a bounded number of large buffers between them, and none in the end.
func TestStrangersShareTheLargeBuffers(t *testing.T) {
	const many, length = maxLarge + 100, 60_000
	came := make(chan struct{}, many)
	rest := &http.Server{ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute}
	rest.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := largeInUse.Load(); n > maxLarge {
			t.Errorf("%d are out", n)
		}
		came <- struct{}{}
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	s := NewServer(rest)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	conns := make([]net.Conn, many)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
		_ = conns[i].SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conns[i], "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\nbegun", length)
	}
	for range many {
		<-came // given up, and with net/http now
	}
	// Who gives one back does so right after the connection has been handed on.
	for begun := time.Now(); largeInUse.Load() != 0; {
		if time.Since(begun) > time.Minute {
			t.Fatalf("%d are still out", largeInUse.Load())
		}
		time.Sleep(time.Millisecond)
	}
	for _, c := range conns {
		if _, err := c.Write(make([]byte, length-len("begun"))); err != nil {
			t.Fatal(err)
		}
		var answer [15]byte
		if _, err := io.ReadFull(c, answer[:]); err != nil || string(answer[:]) != "HTTP/1.1 200 OK" {
			t.Fatalf("%q %v", answer, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}
