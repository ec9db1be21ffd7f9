package main

import (
	"os"
	"path/filepath"
	"testing"

	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// What docs/disaster.md says of a store that is lost and of an old one that comes
// back.

func keep(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAStoreThatIsLost(t *testing.T) {
	t.Parallel()
	up, url := upstream(t)
	p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
	session := open(t, p.URL+"/mcp/acme/thesis/browser")
	p.Kill()
	if err := os.Remove(filepath.Join(p.Dir, "leases.db")); err != nil {
		t.Fatal(err)
	}
	p = p.Restart(t)
	mcp := p.URL + "/mcp/acme/thesis/browser"
	if a := send(t.Context(), "POST", mcp, session, toolCall("snapshot", "{}")); a.status != 404 || a.code != "LEASE_LOST" {
		t.Errorf("a call on the session that nobody has a lease for: %+v", a)
	}
	open(t, mcp) // every slot is free, though the first session may run on
	if s := up.Stats(); s.Opened != 2 {
		t.Errorf("upstream %+v", s)
	}
}

func TestAnOlderStateThatComesBack(t *testing.T) {
	t.Parallel()
	up, url := upstream(t)
	p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
	file := filepath.Join(p.Dir, "leases.db")
	open(t, p.URL+"/mcp/acme/thesis/browser")
	p.Kill()
	backup := filepath.Join(t.TempDir(), "leases.db")
	keep(t, file, backup) // with a lease that is held

	p = p.Restart(t)
	eventually(t, "the session of the killed process is ended", func() bool { return up.Stats().Live == 0 })
	open(t, p.URL+"/mcp/acme/thesis/browser")
	p.Terminate(t)
	if s := up.Stats(); s.Live != 0 {
		t.Fatalf("upstream %+v", s)
	}

	keep(t, backup, file)
	p = p.Restart(t)
	// The old holder's session is long gone: the upstream says so, and the slot is
	// given back although the state has it as taken.
	eventually(t, "the slot of the old state is free", func() bool {
		return send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/browser", "", initialize).session != ""
	})
	if s := up.Stats(); s.Live != 1 {
		t.Errorf("upstream %+v", s)
	}
}
