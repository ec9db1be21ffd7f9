package flaky

import (
	"bufio"
	"net"
	"testing"
	"time"
)

// echo answers every line with itself.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					c.Write([]byte(line))
				}
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *Proxy) (net.Conn, *bufio.Reader) {
	c, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, bufio.NewReader(c)
}

func say(t *testing.T, c net.Conn, r *bufio.Reader, wait time.Duration) error {
	c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return err
	}
	_, err := r.ReadString('\n')
	return err
}

func TestProxyMoods(t *testing.T) {
	p := Start(t, echo(t))
	c, r := dial(t, p)
	if err := say(t, c, r, 5*time.Second); err != nil {
		t.Fatalf("in a good mood: %v", err)
	}
	p.Delay(50 * time.Millisecond)
	began := time.Now()
	if err := say(t, c, r, 5*time.Second); err != nil || time.Since(began) < 100*time.Millisecond {
		t.Errorf("delayed: %v after %s, want two delays", err, time.Since(began))
	}
	p.Delay(0)
	p.BlackHole(true)
	if err := say(t, c, r, 50*time.Millisecond); err == nil {
		t.Error("a black hole answered")
	}
	p.BlackHole(false)
	p.Cut()
	if err := say(t, c, r, time.Second); err == nil {
		t.Error("a cut connection answered")
	}
	p.Refuse(true)
	c, r = dial(t, p)
	if err := say(t, c, r, time.Second); err == nil {
		t.Error("a refused connection answered")
	}
	p.Refuse(false)
	c, r = dial(t, p)
	if err := say(t, c, r, 5*time.Second); err != nil {
		t.Errorf("in a good mood again: %v", err)
	}
}
