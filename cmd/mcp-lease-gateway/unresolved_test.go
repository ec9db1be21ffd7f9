package main

import (
	"context"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

type resolvesBrowser struct{ definition.Resolver }

func (resolvesBrowser) Resolve(_ context.Context, _, _, name string) (*definition.Definition, error) {
	if name != "browser" {
		return nil, &definition.Error{Lease: name, Unknown: true}
	}
	return &definition.Definition{Name: name}, nil
}

func TestWhoeverHasNoDefinitionIsRefusedOnRecord(t *testing.T) {
	var told []lease.Request
	n := noted{resolvesBrowser{}, "mcp", func(r lease.Request, _ time.Duration) { told = append(told, r) }}
	if d, err := n.Resolve(t.Context(), "acme", "thesis", "browser"); err != nil || d.Name != "browser" || len(told) != 0 {
		t.Errorf("%v %v %+v", d, err, told)
	}
	if _, err := n.Resolve(t.Context(), "acme", "thesis", "typo"); err == nil || len(told) != 1 || told[0].Type != "mcp" || told[0].Tenant != "acme" || told[0].Project != "thesis" || told[0].Definition.Name != "typo" {
		t.Errorf("%v %+v", err, told)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := n.Resolve(gone, "acme", "thesis", "typo"); err == nil || len(told) != 1 {
		t.Errorf("who has left is refused: %v %+v", err, told)
	}
}
