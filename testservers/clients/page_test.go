//go:build external

package clients

import (
	"fmt"
	"regexp"
	"strings"
)

const pagePath = "../../docs/clients.md"

// scenarios are all, in the order of the page.
var scenarios = []string{scBasic, scProgress, scElicit, scClose, scReopen, scBusy, scIdle, scRevoked, scReplaced, scStopped, scKilled, scDied, scCrashed, scChildren, scOrphans, scDirect, scEnded}

const head = `# Clients

This page is made by a run of the real clients, unmodified and driven through their public API (` + "`go test -tags external ./testservers/clients -update`" + `); the test fails where it is stale, or where a client does not get what is promised here.

Each client has a lease with ` + "`levels: {user: 1}`" + ` and the defaults of everything else. "told once, then works": the next call of a session that was lost is answered by LEASE_LOST in words, as a tool's error that a model can read, and the one after it works on a new session. "works on": the client has opened a new session without a word.

`

// render makes the page.
func render(members []*member) string {
	var b strings.Builder
	b.WriteString(head)
	table(&b, "## What works", members, []string{scBasic, scProgress, scElicit, scClose, scReopen}, true)
	b.WriteString("\"opened again at once\": a session is closed and the next one opened, with one slot for the user. A client that sends no DELETE replaces its own session, which has no call in flight.\n\n")
	table(&b, "## When a lease ends", members, []string{scBusy, scIdle, scRevoked, scReplaced, scStopped, scKilled, scDied}, false)
	table(&b, "## Where the gateway runs the server's program", members, []string{scCrashed, scChildren, scOrphans}, false)
	b.WriteString("\"replaced\": the same user opens a second session; the first reads LEASE_LOST, then LEASE_BUSY for as long as the second lives.\n\n")
	table(&b, "## Without the gateway", members, []string{scDirect, scEnded}, false)
	b.WriteString("The same calls at the same server, whose session then ends.\n\n## What a person reads\n\n")
	for _, m := range members {
		fmt.Fprintf(&b, "**%s**\n\n", m.title)
		for _, scenario := range []string{scBusy, scIdle, scRevoked, scReplaced, scStopped, scKilled, scCrashed, scChildren, scOrphans} {
			if read := m.cells[scenario].read; read != "" {
				fmt.Fprintf(&b, "- %s: `%s`\n", scenario, shown(read))
			}
		}
		for _, scenario := range scenarios {
			if d, differs := m.differs[scenario]; differs {
				fmt.Fprintf(&b, "- %s differs: %s\n", scenario, d.why)
			}
		}
		b.WriteString("\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func table(b *strings.Builder, title string, members []*member, columns []string, versions bool) {
	fmt.Fprintf(b, "%s\n\n| client |", title)
	if versions {
		b.WriteString(" version | needs |")
	}
	fmt.Fprintf(b, " %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)+map[bool]int{true: 2}[versions]))
	for _, m := range members {
		fmt.Fprintf(b, "| %s |", m.title)
		if versions {
			fmt.Fprintf(b, " %s | %s |", or(m.about.Version, "–"), or(m.needs, "nothing"))
		}
		for _, scenario := range columns {
			fmt.Fprintf(b, " %s |", m.cells[scenario].words)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// What differs from run to run.
var (
	address = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	seconds = regexp.MustCompile(`\d+(\.\d+)? s\b`)
	stamp   = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\[\d+\]|"id":\d+`)
)

const longest = 400

// shown is a text as the page quotes it: the line with the gateway's words where
// there are many.
func shown(read string) string {
	for line := range strings.Lines(read) {
		if strings.Contains(line, "LEASE_BUSY: ") || strings.Contains(line, "LEASE_LOST: ") {
			read = line
			break
		}
	}
	read = address.ReplaceAllString(read, "GATEWAY")
	read = seconds.ReplaceAllString(read, "N s")
	read = stamp.ReplaceAllString(read, "…")
	read = strings.ReplaceAll(strings.Join(strings.Fields(read), " "), "`", "'")
	if r := []rune(read); len(r) > longest {
		read = string(r[:longest]) + "…"
	}
	return read
}
