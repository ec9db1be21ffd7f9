package ratelog_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

func TestAStormIsAFewLinesAndACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output.Buffer
		l := ratelog.New(slog.New(slog.NewTextHandler(&out, nil)))
		for range 1000 {
			l.Write(t.Context(), slog.LevelWarn, "refused", slog.String("path", "/x"))
		}
		if n := strings.Count(out.String(), "refused"); n != ratelog.Burst {
			t.Errorf("%d lines at once", n)
		}
		time.Sleep(ratelog.Later)
		synctest.Wait()
		if n := strings.Count(out.String(), "leftOut=980"); n != 1 {
			t.Errorf("the others are not counted once: %s", out.String())
		}
		l.Write(t.Context(), slog.LevelWarn, "refused", slog.String("path", "/later"))
		time.Sleep(2 * ratelog.Later)
		synctest.Wait()
		if s := out.String(); !strings.Contains(s, "path=/later") || strings.Count(s, "leftOut") != 1 {
			t.Errorf("after the storm: %s", s)
		}
	})
}
