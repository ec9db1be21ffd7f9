package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/gateway/peers"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// TestARealPodTakesSignedCalls calls a running gateway as another pod would.
func TestARealPodTakesSignedCalls(t *testing.T) {
	t.Parallel()
	p := process.Start(t, process.Config{Documents: map[string]string{leasePath: "levels: {user: 1}\n"}})
	m := regexp.MustCompile(`"pod":"([^"]+)"`).FindStringSubmatch(p.Log())
	if m == nil {
		t.Fatalf("no pod id in %s", p.Log())
	}
	ring, err := seal.NewRing(bytes.Repeat([]byte{7}, seal.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	change := []document.Change{{Key: document.Key{Tenant: "acme", Project: "thesis", Path: "_vance/config/lease/signed.yaml"}}}
	to := func(id string) []lease.Pod {
		return []lease.Pod{{ID: lease.PodID(id), Endpoint: strings.TrimPrefix(p.Internal, "http://")}}
	}
	for name, x := range map[string]struct {
		token, pod string
		ok         bool
	}{
		"with the pods' token":          {process.Token, m[1], true},
		"with another token":            {"another-token-of-this-test", m[1], false},
		"that is meant for another pod": {process.Token, "web-2", false},
	} {
		c := peers.NewClient(peers.ClientOptions{Token: x.token, Seal: ring})
		defer c.Close()
		if err := c.Changed(t.Context(), to(x.pod), change); (err == nil) != x.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	eventually(t, "the change is in the audit log", func() bool {
		return strings.Count(p.Log(), `"by":"another pod","tenant":"acme","project":"thesis"`) == 1
	})
	if strings.Contains(p.Log(), process.Token) {
		t.Error("the token is in the log")
	}
}
