//go:build external

package clients

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	update = flag.Bool("update", false, "write docs/clients.md from what the run observes")
	only   = flag.String("client", "", "drive only the client with this id, and leave the page alone")
)

// TestRealClients takes every client through the life of a lease.
func TestRealClients(t *testing.T) {
	driven := subjects
	if *only != "" {
		driven = slices.DeleteFunc(slices.Clone(subjects), func(s subject) bool { return !strings.Contains(s.id, *only) })
	}
	w, members := newWorld(t, driven)
	w.observe(members)
	for _, m := range members {
		t.Run(m.id, func(t *testing.T) { judge(t, m) })
	}
	if *only != "" {
		return
	}
	got := render(members)
	if *update {
		if err := os.WriteFile(pagePath, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rows(string(want)), rows(got)); diff != "" {
		t.Errorf("%s (-) is not what the run observed (+); where that is right, run go test -tags external ./testservers/clients -update\n%s", pagePath, diff)
	}
}

// rows are the tables of a page. What a person reads is quoted below them, and
// differs in words that depend on who asks first.
func rows(page string) (lines []string) {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "|") {
			lines = append(lines, line)
		}
	}
	return lines
}

// observe runs all scenarios. The gateway ends twice, for all clients at once.
func (w *world) observe(members []*member) {
	w.step("direct", members, w.withoutGateway)
	w.step("basics", members, func(m *member) {
		m.cells[scBasic], m.cells[scProgress], m.cells[scElicit] = m.basics(w.url(m, routeOne))
		w.closes(m)
	})
	w.occupy(members[0])
	w.step("busy", members, w.busy)
	w.step("idle and revoked", members, func(m *member) {
		w.idle(m)
		w.revoked(m)
	})
	w.step("replaced", members, w.replaced)

	w.step("a program ends", members, w.crashed)

	w.step("before the restart", members, func(m *member) { w.before(m, restart) })
	w.restart(func() { w.gateway.Terminate(w.t) })
	w.step("after the restart", members, func(m *member) { w.outlived(m, restart) })

	w.step("before the kill", members, func(m *member) { w.before(m, crash) })
	w.restart(func() { w.gateway.Kill() })
	w.step("after the kill", members, func(m *member) { w.outlived(m, crash) })

	w.step("client killed", members, w.dies)
}

// judge compares what was observed with what is promised.
func judge(t *testing.T, m *member) {
	for _, scenario := range scenarios {
		c, there := m.cells[scenario]
		if !there {
			t.Errorf("%s: nothing was observed", scenario)
			continue
		}
		differs, known := m.differs[scenario]
		switch {
		case known && c.words != differs.words:
			t.Errorf("%s: %q, where it is known for %q (%s)\n\tits caller read: %s", scenario, c.words, differs.words, differs.why, c.read)
		case !known && promised[scenario] != nil && !slices.Contains(promised[scenario], c.words):
			t.Errorf("%s: %q is not what is promised: %q\n\tits caller read: %s", scenario, c.words, promised[scenario], c.read)
		}
	}
}
