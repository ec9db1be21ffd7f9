package paced_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/paced"
)

// lines is what a log has written; the count comes from a timer of its own.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestAStormIsAFewLinesAndACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		l := paced.New(slog.New(slog.NewTextHandler(&out, nil)))
		for range 1000 {
			l.Write(t.Context(), slog.LevelWarn, "refused", slog.String("path", "/x"))
		}
		if n := strings.Count(out.String(), "refused"); n != paced.Burst {
			t.Errorf("%d lines at once", n)
		}
		time.Sleep(paced.Later)
		synctest.Wait()
		if n := strings.Count(out.String(), "leftOut=980"); n != 1 {
			t.Errorf("the others are not counted once: %s", out.String())
		}
		l.Write(t.Context(), slog.LevelWarn, "refused", slog.String("path", "/later"))
		time.Sleep(2 * paced.Later)
		synctest.Wait()
		if s := out.String(); !strings.Contains(s, "path=/later") || strings.Count(s, "leftOut") != 1 {
			t.Errorf("after the storm: %s", s)
		}
	})
}
