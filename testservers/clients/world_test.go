//go:build external

package clients

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/client"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// brainKey is the key that the Brain has: it may speak for users.
const brainKey = "the-key-of-the-brain-in-these-tests-0001"

// The routes that each client has, by what their leases limit.
const (
	routeOne  = "one"  // one session for each user, which is what init writes
	routeIdle = "idle" // an idle time of some seconds
	routeKept = "kept" // many sessions that stay
	// So is this one, of a program that the gateway runs for each session.
	routeProgram = "program"
)

// world is a gateway in front of a test server for each client.
type world struct {
	t       *testing.T
	gateway *pod.Process
	admin   *client.Client
}

// member is a client in the world.
type member struct {
	subject
	*driver
	server *browser.Server
	direct string   // the server's own URL
	about  answer   // of the command state
	held   []string // the tokens of its leases before the gateway ends
	cells  map[string]cell
}

func newWorld(t *testing.T, subjects []subject) (*world, []*member) {
	t.Helper()
	docs := map[string]string{
		"_vance/_tenant/_vance/config/lease/busy.yaml": "name: busy\nlevels: {project: 1}\nttlSeconds: 600\nwaitMs: 3000\n",
	}
	program := buildProgram(t)
	var members []*member
	for _, s := range subjects {
		m := &member{subject: s, server: browser.New(browser.Behavior{}), cells: map[string]cell{}}
		up := httptest.NewServer(m.server)
		t.Cleanup(func() {
			m.server.Close()
			up.CloseClientConnections()
			up.Close()
		})
		m.direct = up.URL + "/mcp"
		for route, lease := range map[string]string{
			routeOne:  "levels: {user: 1}\nttlSeconds: 600\nwaitMs: 3000\n",
			routeIdle: "levels: {user: 20}\nttlSeconds: 3\n",
			routeKept: "levels: {user: 20}\nttlSeconds: 600\n",
			// The program's sessions are counted apart.
			routeProgram: "levels: {user: 20}\nttlSeconds: 600\n",
		} {
			name := s.id + "-" + route
			docs["_vance/_tenant/_vance/config/lease/"+name+".yaml"] = "name: " + name + "\n" + lease
			docs["_vance/_tenant/_vance/server-tools/"+name+".yaml"] = document(name, m.direct, name)
			if route == routeProgram {
				docs["_vance/_tenant/_vance/server-tools/"+name+".yaml"] = fmt.Sprintf(
					"name: %s\ntype: mcp_server\nparameters:\n  transport: stdio\n  command: [%s]\n  lease: %s\n", name, program, name)
			}
		}
		docs["_vance/_tenant/_vance/server-tools/"+s.id+"-busy.yaml"] = document(s.id+"-busy", m.direct, "busy")
		members = append(members, m)
	}
	w := &world{t: t, gateway: pod.Start(t, pod.Config{
		Documents: docs,
		Session:   "openWait: 2s",
		Identity: fmt.Sprintf("anonymous: {tenant: acme, projects: [\"*\"], user: ada}\napiKeys:\n  - {name: brain, sha256: %x, tenants: {acme: [\"*\"]}, userHeader: X-Vance-User}",
			sha256.Sum256([]byte(brainKey))),
	})}
	w.connect()
	w.startDrivers(members)
	return w, members
}

// buildProgram builds the test server over stdio.
func buildProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	out, err := exec.Command("go", "build", "-o", path, "github.com/vancetope/mcp-lease-gateway/testservers/cmd/stdio").CombinedOutput()
	if err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
}

func document(name, url, lease string) string {
	return fmt.Sprintf("name: %s\ntype: mcp_server\nparameters:\n  transport: http\n  url: %s\n  lease: %s\n", name, url, lease)
}

// startDrivers starts all drivers, which load their libraries meanwhile.
func (w *world) startDrivers(members []*member) {
	for _, m := range members {
		m.driver = start(w.t, m.language, m.driverName())
	}
	for _, m := range members {
		about, err := m.do(command{Do: "state"})
		if err != nil {
			w.t.Fatalf("%s: %v", m.id, err)
		}
		m.about = about
	}
}

func (w *world) connect() {
	admin, err := client.New(w.gateway.Internal, pod.Token, "test", http.DefaultClient)
	if err != nil {
		w.t.Fatal(err)
	}
	w.admin = admin
}

// restart ends the gateway, as an operator or as a crash does, and starts it again.
func (w *world) restart(end func()) {
	end()
	w.gateway = w.gateway.RestartInPlace(w.t)
	w.connect()
}

// url is a client's URL of one of its routes.
func (w *world) url(m *member, route string) string {
	if m.token != "" {
		return w.gateway.URL + "/mcp/acme/thesis/@ada/" + m.id + "-" + route
	}
	return w.gateway.URL + "/mcp/acme/thesis/" + m.id + "-" + route
}

// holders are the tokens of the leases of a route.
func (w *world) holders(m *member, route string) []string {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	resource := m.id + "-" + route
	page, err := w.admin.Holders(ctx, view.HolderQuery{Resource: resource})
	if err != nil {
		return []string{"?"} // not none
	}
	var tokens []string
	for _, h := range page.Holders {
		tokens = append(tokens, h.Token)
	}
	return tokens
}

// revoke takes the leases of a route away, as an operator does.
func (w *world) revoke(m *member, route string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for _, token := range w.holders(m, route) {
		if _, err := w.admin.Revoke(ctx, token); err != nil {
			return err
		}
	}
	return nil
}

// eventually polls until what holds, or reports that it did not within the limit.
func eventually(limit time.Duration, holds func() bool) bool {
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
	return true
}

// occupy takes the only slot of the lease busy and keeps it.
func (w *world) occupy(m *member) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.gateway.URL+"/mcp/acme/thesis/"+m.id+"-busy",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"first","version":"1"}}}`))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.Header.Get("Mcp-Session-Id") == "" {
		w.t.Fatalf("the slot of the busy lease was not taken: %s", res.Status)
	}
}

// atOnce is how many clients take a step at the same time: they wait more than
// they work.
const atOnce = 6

// step takes all clients through a part of the scenarios and returns when the last
// has done it.
func (w *world) step(name string, members []*member, step func(m *member)) {
	begun := time.Now()
	defer func() { w.t.Logf("%s: %.1f s", name, time.Since(begun).Seconds()) }()
	var wg sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for _, m := range members {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			step(m)
		})
	}
	wg.Wait()
}
