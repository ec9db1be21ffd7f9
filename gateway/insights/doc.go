// Package insights is the page Insights → Leases (spec §9): a tenant's admin
// sees who holds what, how full its tenant, project and user levels are, what
// was refused or taken away in the last hour, and takes a lease away.
//
// The page is rendered on the server and works without JavaScript; a small
// script adds live updates and a confirmation in place. The gateway mounts it
// on the client listener:
//
//	page, err := insights.New(insights.Options{
//		View: d, Ring: ring, Log: log, Origins: conf.Origins,
//		Identity: insights.Keys(func() *identity.Authenticator { return live.Load().Identity }),
//	})
//	clients.Handle("/insights/", page) // everything below /insights/{tenant}/leases
//
// A sign-in is the tenant admin's key, sealed in a cookie that only this
// gateway's pods can open, and judged anew with every request: a key that is
// withdrawn is out at once. No whole token and no secret is in a page.
//
// It must not know stores, sessions or documents; it sees leases through
// gateway/admin/view.
package insights
