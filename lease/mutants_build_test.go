//go:build mutants

package lease_test

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// killer is the test that must fail, as -run and the output name it, its package
// and the environment that it needs.
func (x mutant) killer() (run, name, pkg string, env []string) {
	pkg = "."
	under := func(test, sub string) (string, string) {
		sub = strings.ReplaceAll(sub, " ", "_")
		return "^" + test + "$/^" + regexp.QuoteMeta(sub) + "$", test + "/" + sub
	}
	switch {
	case x.killedBy == byCrash:
		run, name, env = "^TestEveryOperationCanFail$", "TestEveryOperationCanFail", []string{"LEASE_CRASH_SCHEDULES=20"}
	case x.killedBy == byGroups:
		run, name, pkg = "^TestEveryScheduleOfGroups$", "TestEveryScheduleOfGroups", "./internal/groups"
	case slices.ContainsFunc(proofs, func(p proof) bool { return p.says == x.killedBy }):
		run, name = under("TestProofs", x.killedBy)
	default:
		run, name = under("TestExploreEverySchedule", x.killedBy)
		env = []string{"LEASE_PREEMPTIONS=" + strconv.Itoa(x.budget)}
	}
	return run, name, pkg, env
}

// TestMutantsOfTheTextAreKilled is TestMutantsAreKilled for the edits of the
// engine: the package is built with each of them, and the test that is named for
// it must fail. A build takes some seconds of one core.
func TestMutantsOfTheTextAreKilled(t *testing.T) {
	atOnce := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, x := range mutants {
		if x.edits == nil {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			run, name, pkg, env := x.killer()
			c := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-timeout=3m", "-overlay="+x.overlay(t), "-run="+run, pkg)
			c.Env = append(os.Environ(), env...)
			out, err := c.CombinedOutput()
			failed, ok := errors.AsType[*exec.ExitError](err)
			switch {
			case err == nil:
				t.Fatalf("it survives %q:\n%s", x.killedBy, out)
			case !ok, failed.ExitCode() != 1, !strings.Contains(string(out), "--- FAIL: "+name+" ("):
				t.Fatalf("it was not killed by %q, but something went wrong: %v\n%s", x.killedBy, err, out)
			}
		})
	}
}
