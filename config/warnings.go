package config

import (
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/credential"
)

// clientPatience is how long MCP clients wait for initialize.
const clientPatience = 5 * time.Second

// warnings says what is right and probably not meant.
func (c *checker) warnings() {
	g := c.g
	if id := g.Identity; id.Anonymous == nil && len(id.APIKeys) == 0 && id.JWT == nil {
		c.Warn("identity", "it names no credential, so every call is refused; add apiKeys, jwt or, on a loopback listener, anonymous")
	}
	if g.Internal.SendToken {
		c.Warn("internal.sendToken", "whoever can write an address into the lease store is sent the internal token; take it out when no pod of an earlier version runs")
	}
	if g.Session.OpenWait >= clientPatience {
		c.Warn("session.openWait", "MCP clients give up after %s, so whoever waits longer takes a slot for nobody", clientPatience)
	}
	if g.Lease.PendingTTL > g.Lease.ReconcileSafety {
		c.Warn("lease.pendingTTL", "a holder that is not whole within half of lease.reconcileSafety (%s) never becomes so; a longer pendingTTL only keeps its slots", g.Lease.ReconcileSafety)
	}
	if j := g.Identity.JWT; j != nil && g.PublicURL == "" && !g.Loopback() {
		if _, what := credential.URL(j.Audience, true); what != "" {
			c.Warn("identity.jwt", "OAuth clients are not told where to get a token, since the gateway does not know its own address; set publicURL")
		}
	}
	if j := g.Identity.JWT; j != nil && strings.HasPrefix(j.JWKSURL, "http://") {
		c.Warn("identity.jwt.jwksURL", "whoever can change what comes over plain http can make tokens; use https")
	}
}
