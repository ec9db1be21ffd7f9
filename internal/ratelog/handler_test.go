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

func TestATenantsStormHidesNobodysLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output.Buffer
		log := slog.New(ratelog.NewHandler(slog.NewTextHandler(&out, nil))).With("pod", "p1")
		for range 1000 {
			log.Warn("refused", "tenant", "loud", "server", "x")
		}
		log.Warn("refused", "tenant", "quiet")
		log.Warn("another", "tenant", "loud")
		log.Warn("without one")
		if n := strings.Count(out.String(), "tenant=loud server=x"); n != ratelog.Burst {
			t.Errorf("%d lines at once", n)
		}
		for _, want := range []string{"msg=refused pod=p1 tenant=quiet", "msg=another pod=p1 tenant=loud", `msg="without one"`} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("it lacks %s: %s", want, out.String())
			}
		}
		time.Sleep(ratelog.Later)
		synctest.Wait()
		if n := strings.Count(out.String(), "msg=refused pod=p1 tenant=loud leftOut=980"); n != 1 {
			t.Errorf("the others are not counted once: %s", out.String())
		}
	})
}

func TestLinesBelowAWarningComeAsTheyAre(t *testing.T) {
	var out output.Buffer
	log := slog.New(ratelog.NewHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))).WithGroup("g")
	for range 1000 {
		log.Debug("a call")
		log.Info("a line")
	}
	if n := strings.Count(out.String(), "a call"); n != 1000 {
		t.Errorf("%d lines", n)
	}
	if n := strings.Count(out.String(), "a line"); n != 1000 {
		t.Errorf("%d lines", n)
	}
}
