//go:build external

package clients

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// cell is what was observed of a client in a scenario: in a few words, and what
// its caller read where that was not the tool's answer.
type cell struct{ words, read string }

// The scenarios, in the order of the page.
const (
	scBasic    = "open, list, call"
	scProgress = "progress"
	scElicit   = "elicitation"
	scClose    = "close"
	scReopen   = "opened again at once"
	scBusy     = "busy"
	scIdle     = "idle"
	scRevoked  = "revoked"
	scReplaced = "replaced"
	scStopped  = "gateway restarted"
	scKilled   = "gateway killed"
	scDied     = "client killed"
	scCrashed  = "its program ends"
	scChildren = "gateway restarted (program)"
	scOrphans  = "gateway killed (program)"
	scDirect   = "direct: basics"
	scEnded    = "direct: the server ends the session"
)

// The words of cells that more than one scenario uses.
const (
	ok          = "yes"
	unsupported = "it has none"
	toldOnce    = "told once, then works"
	unnoticed   = "works on"
	stuck       = "stuck"
)

// probe is a call whose right answer is known.
type probe struct {
	tool      string
	arguments map[string]any
	want      string
}

var (
	navigate = probe{"navigate", map[string]any{"url": "http://example.com/"}, "at http://example.com/"}
	echo     = probe{"echo", map[string]any{"text": "hello"}, "hello"} // of the program
)

func (m *member) open(as, url string) error {
	_, err := m.do(command{Do: "open", As: as, URL: url, Token: m.token})
	return err
}

func (m *member) close(as string) error {
	_, err := m.do(command{Do: "close", As: as})
	return err
}

// call makes a call and returns what the caller read: "" where it was the right
// answer.
func (m *member) call(as string, p probe) (read string) {
	a, err := m.do(command{Do: "call", As: as, Name: p.tool, Arguments: p.arguments})
	switch {
	case err != nil:
		return err.Error()
	case !a.IsError && a.Text == p.want:
		return ""
	}
	return a.Text
}

// basics is what needs no lease to end: on a session "basic", which stays open.
func (m *member) basics(url string) (list, progress, elicit cell) {
	none := cell{words: "–"}
	if err := m.open("basic", url); err != nil {
		return cell{"cannot connect", err.Error()}, none, none
	}
	a, err := m.do(command{Do: "list", As: "basic"})
	if err != nil || !slices.Contains(a.Tools, "navigate") {
		return cell{"lists no tools", fmt.Sprint(err, a.Tools)}, none, none
	}
	if read := m.call("basic", navigate); read != "" {
		return cell{"cannot call", read}, none, none
	}
	return cell{words: ok}, m.progress(), m.elicit()
}

func (m *member) progress() cell {
	a, err := m.do(command{Do: "call", As: "basic", Name: "progress", Arguments: map[string]any{"steps": 3, "intervalMs": 50}, Progress: true})
	switch {
	case err != nil || a.Text != "3 steps":
		return cell{"the call fails", fmt.Sprint(err, a.Text)}
	case !m.about.Events:
		return cell{words: unsupported}
	case a.Progress == 3:
		return cell{words: ok}
	}
	return cell{words: fmt.Sprintf("%d of 3 events", a.Progress)}
}

func (m *member) elicit() cell {
	if !m.about.Elicitation {
		return cell{words: unsupported}
	}
	a, err := m.do(command{Do: "call", As: "basic", Name: "ask", Arguments: map[string]any{"what": "elicitation", "timeoutMs": 10_000}})
	if err != nil || !strings.Contains(a.Text, `"action":"accept"`) {
		return cell{"the call fails", fmt.Sprint(err, a.Text)}
	}
	return cell{words: ok}
}

// closes ends the session "basic" and opens the next one at once, where the user
// has one slot.
func (w *world) closes(m *member) {
	if err := m.close("basic"); err != nil {
		m.cells[scClose] = cell{"fails", err.Error()}
	} else if eventually(time.Second, func() bool { return len(w.holders(m, routeOne)) == 0 }) {
		m.cells[scClose] = cell{words: "frees the slot"}
	} else {
		m.cells[scClose] = cell{words: "keeps the slot until it is idle"}
	}
	m.cells[scReopen] = cell{words: ok}
	if err := m.open("again", w.url(m, routeOne)); err != nil {
		m.cells[scReopen] = cell{"refused", err.Error()}
	} else if read := m.call("again", navigate); read != "" {
		m.cells[scReopen] = cell{"cannot call", read}
	}
	_ = m.close("again") // where the client cannot, the scenario close says so
}

// busy opens a session where another has the only slot.
func (w *world) busy(m *member) {
	begun := time.Now()
	err := m.open("busy", w.url(m, "busy"))
	took := time.Since(begun)
	switch {
	case err == nil:
		m.cells[scBusy] = cell{words: "opened"}
	case !strings.Contains(err.Error(), "LEASE_BUSY: the project limit of"):
		m.cells[scBusy] = cell{"refused without the reason", err.Error()}
	case took > 20*time.Second:
		m.cells[scBusy] = cell{"the reason after more than 20 s", err.Error()}
	default:
		m.cells[scBusy] = cell{"the reason in words", err.Error()}
	}
}

// after tells what a client's calls gave after its session was lost.
func (m *member) after(as string, p probe) cell {
	var reads []string
	for range 4 {
		read := m.call(as, p)
		if read == "" {
			break
		}
		reads = append(reads, read)
	}
	c := cell{words: unnoticed}
	if len(reads) > 0 {
		c.read = reads[0]
		c.words = "an error without the reason, then works"
		if strings.Contains(c.read, "LEASE_LOST: ") {
			c.words = toldOnce
		}
	}
	switch len(reads) {
	case 2, 3:
		c.words = strings.NewReplacer("told once", fmt.Sprintf("told %d times", len(reads)), "an error", fmt.Sprintf("%d errors", len(reads))).Replace(c.words)
	case 4:
		c.words = stuck
	}
	return c
}

// opened opens a session and uses it once.
func (m *member) opened(as, url string, p probe) error {
	if err := m.open(as, url); err != nil {
		return err
	}
	if read := m.call(as, p); read != "" {
		return errors.New(read)
	}
	return nil
}

// loses opens a session, ends it by lose and tells what the calls give then.
func (w *world) loses(m *member, as, route string, lose func() error) cell {
	if err := m.opened(as, w.url(m, route), navigate); err != nil {
		return cell{"cannot connect", err.Error()}
	}
	if err := lose(); err != nil {
		return cell{"the session was not ended", err.Error()}
	}
	return m.after(as, navigate)
}

func (w *world) idle(m *member) {
	m.cells[scIdle] = w.loses(m, "idle", routeIdle, func() error {
		if !eventually(patience, func() bool { return len(w.holders(m, routeIdle)) == 0 }) {
			return errors.New("the lease was not taken away")
		}
		return nil
	})
	_ = m.close("idle")
}

func (w *world) revoked(m *member) {
	m.cells[scRevoked] = w.loses(m, "revoked", routeKept, func() error { return w.revoke(m, routeKept) })
	_ = m.close("revoked")
}

// replaced opens a second session where the user has one slot, which replaces the
// first; then both are used, and then the first alone.
func (w *world) replaced(m *member) {
	url := w.url(m, routeOne)
	if err := m.opened("first", url, navigate); err != nil {
		m.cells[scReplaced] = cell{"cannot connect", err.Error()}
		return
	}
	if err := m.opened("second", url, navigate); err != nil {
		m.cells[scReplaced] = cell{"the second is refused", err.Error()}
		return
	}
	told := m.call("first", navigate)
	m.cells[scReplaced] = cell{words: "both work", read: told}
	if told != "" {
		waits := m.call("first", navigate)
		_ = m.close("second")
		if err := w.revoke(m, routeOne); err != nil {
			m.cells[scReplaced] = cell{"the second was not ended", err.Error()}
			return
		}
		m.cells[scReplaced] = cell{words: words(told, waits) + "; after the second " + m.after("first", navigate).words, read: told}
	}
	_ = m.close("first")
}

// words names the two refusals that the first of two sessions reads.
func words(told, waits string) string {
	for _, code := range []string{"LEASE_LOST", "LEASE_BUSY"} {
		told = named(told, code)
		waits = named(waits, code)
	}
	return told + ", then " + waits
}

func named(read, code string) string {
	if strings.Contains(read, code+": ") {
		return code
	}
	return read
}

// crashed ends the program behind a session.
func (w *world) crashed(m *member) {
	if err := m.opened("crashed", w.url(m, routeProgram), echo); err != nil {
		m.cells[scCrashed] = cell{"cannot connect", err.Error()}
		return
	}
	told := m.call("crashed", probe{"exit", map[string]any{"code": 1}, ""})
	c := m.after("crashed", echo)
	if c.words == unnoticed && strings.Contains(told, "LEASE_LOST: ") {
		c = cell{toldOnce, told} // by the call in which it ended
	}
	m.cells[scCrashed] = c
	_ = m.close("crashed")
}

// outliving are sessions that are there when the gateway ends: one at a server, and
// one at a program that ends with it.
type outliving struct{ as, server, program string }

var (
	restart = outliving{"restart", scStopped, scChildren}
	crash   = outliving{"crash", scKilled, scOrphans}
)

func (w *world) before(m *member, o outliving) {
	if err := m.opened(o.as, w.url(m, routeKept), navigate); err != nil {
		m.cells[o.server] = cell{"cannot connect", err.Error()}
	}
	if err := m.opened(o.as+"-program", w.url(m, routeProgram), echo); err != nil {
		m.cells[o.program] = cell{"cannot connect", err.Error()}
	}
	m.held = append(w.holders(m, routeKept), w.holders(m, routeProgram)...)
}

// outlived tells what the sessions give at the next gateway, once that one has given
// back the slots of the one before.
func (w *world) outlived(m *member, o outliving) {
	gone := eventually(patience, func() bool {
		now := append(w.holders(m, routeKept), w.holders(m, routeProgram)...)
		return !slices.ContainsFunc(m.held, func(token string) bool { return slices.Contains(now, token) })
	})
	for scenario, s := range map[string]struct {
		as string
		p  probe
	}{o.server: {o.as, navigate}, o.program: {o.as + "-program", echo}} {
		if _, failed := m.cells[scenario]; failed {
			continue
		}
		if !gone {
			m.cells[scenario] = cell{words: "the slot is not given back"}
			continue
		}
		m.cells[scenario] = m.after(s.as, s.p)
		_ = m.close(s.as)
	}
}

// dies kills the client; its session must end.
func (w *world) dies(m *member) {
	before := sessions(m)
	if err := m.open("dies", w.url(m, routeIdle)); err != nil {
		m.cells[scDied] = cell{"cannot connect", err.Error()}
		return
	}
	mine := sessions(m)
	mine = slices.DeleteFunc(mine, func(id string) bool { return slices.Contains(before, id) })
	m.kill()
	gone := eventually(patience, func() bool {
		left := sessions(m)
		return len(w.holders(m, routeIdle)) == 0 && !slices.ContainsFunc(mine, func(id string) bool { return slices.Contains(left, id) })
	})
	if !gone {
		m.cells[scDied] = cell{words: "its session stays"}
		return
	}
	m.cells[scDied] = cell{words: "nothing is left"}
}

func sessions(m *member) []string {
	var ids []string
	for _, s := range m.server.Stats().Sessions {
		ids = append(ids, s.ID)
	}
	return ids
}

// withoutGateway is what the client does at the server itself, whose session then
// ends.
func (w *world) withoutGateway(m *member) {
	list, progress, elicit := m.basics(m.direct)
	m.cells[scDirect] = list
	if list.words != ok {
		m.cells[scEnded] = cell{words: "–"}
		return
	}
	for what, c := range map[string]cell{scProgress: progress, scElicit: elicit} {
		if c.words != ok && c.words != unsupported {
			m.cells[scDirect] = cell{what + ": " + c.words, c.read}
		}
	}
	m.server.End()
	m.cells[scEnded] = m.after("basic", navigate)
	_ = m.close("basic")
	m.server.End() // what the client left
}
