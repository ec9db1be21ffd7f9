package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipe returns a progressConn and its other end.
func pipe(t *testing.T) (*progressConn, net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return &progressConn{Conn: a, stall: time.Minute}, b
}

func TestAWriteLastsAsLongAsItMakesProgress(t *testing.T) {
	t.Run("one that nobody reads fails in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _ := pipe(t)
			begun := time.Now()
			n, err := c.Write([]byte("text"))
			if took := time.Since(begun); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || took > time.Minute {
				t.Errorf("%d, %v after %v", n, err, took)
			}
		})
	})
	t.Run("one that is read slowly is written whole", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, other := pipe(t)
			text := strings.Repeat("text", 5)
			go func() {
				_, _ = c.Write([]byte(text))
				_ = c.Close()
			}()
			got := make([]byte, 0, len(text))
			for {
				time.Sleep(50 * time.Second)
				var one [1]byte
				n, err := other.Read(one[:])
				if err != nil {
					break
				}
				got = append(got, one[:n]...)
			}
			if string(got) != text {
				t.Errorf("read %q", got)
			}
		})
	})
	t.Run("one after a long silence has its whole time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, other := pipe(t)
			go func() { _, _ = io.ReadFull(other, make([]byte, 1)) }()
			if _, err := c.Write([]byte("a")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			begun := time.Now()
			_, err := c.Write([]byte("b"))
			if took := time.Since(begun); !errors.Is(err, os.ErrDeadlineExceeded) || took < 45*time.Second {
				t.Errorf("%v after %v", err, took)
			}
		})
	})
	t.Run("a deadline of the server's counts, and its end as well", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _ := pipe(t)
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			begun := time.Now()
			if _, err := c.Write([]byte("a")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) > time.Second {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
			_ = c.SetDeadline(time.Time{})
			begun = time.Now()
			if _, err := c.Write([]byte("a")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) < 45*time.Second {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
		})
	})
	t.Run("a deadline that comes beside a write ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _ := pipe(t)
			time.AfterFunc(time.Second, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
			begun := time.Now()
			if _, err := c.Write([]byte("a")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) > time.Second {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
		})
	})
}

// What the kernel copies arrives whole, over TCP and in several pieces.
func TestTheKernelCopiesInPieces(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	text := strings.Repeat("0123456789abcdef", 3*piece/16+1)
	sent := make(chan error, 1)
	go func() {
		c, err := progressListener{l, time.Minute}.Accept()
		if err != nil {
			sent <- err
			return
		}
		n, err := c.(io.ReaderFrom).ReadFrom(&io.LimitedReader{R: strings.NewReader(text + "more"), N: int64(len(text))})
		if n != int64(len(text)) && err == nil {
			err = errors.New("it was not all copied")
		}
		sent <- errors.Join(err, c.Close())
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != text {
		t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
