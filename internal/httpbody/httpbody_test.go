package httpbody_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
)

// source counts what is read of it and whether it was closed.
type source struct {
	io.Reader
	read   int
	closed bool
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.read += n
	return n, err
}

func (s *source) Close() error {
	s.closed = true
	return nil
}

func TestDrain(t *testing.T) {
	for name, size := range map[string]int{"nothing": 0, "a short body is read to its end": 20 << 10, "a long one is given up": 10 << 20} {
		t.Run(name, func(t *testing.T) {
			s := &source{Reader: strings.NewReader(strings.Repeat("x", size))}
			beginning := httpbody.Drain(s)
			if len(beginning) != min(size, 4<<10) || !s.closed || s.read < min(size, 64<<10) || s.read > 128<<10 {
				t.Errorf("%d bytes of beginning, %d read, closed %v", len(beginning), s.read, s.closed)
			}
		})
	}
}

func TestPeek(t *testing.T) {
	broken := errors.New("broken")
	for _, size := range []int{0, 10, 4 << 10, 100 << 10} {
		text := strings.Repeat("x", size)
		s := &source{Reader: strings.NewReader(text)}
		beginning, whole := httpbody.Peek(s)
		all, err := io.ReadAll(whole)
		if err != nil || string(all) != text || len(beginning) != min(size, 4<<10) || s.closed {
			t.Errorf("%d: %d of %d, %v", size, len(all), len(beginning), err)
		}
		if err := whole.Close(); err != nil || !s.closed {
			t.Errorf("%v, closed %v", err, s.closed)
		}
		_, whole = httpbody.Peek(&source{Reader: io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))})
		if all, err := io.ReadAll(whole); !errors.Is(err, broken) || string(all) != text {
			t.Errorf("%d: %d, %v", size, len(all), err)
		}
	}
}
