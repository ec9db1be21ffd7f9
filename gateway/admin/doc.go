// Package admin is the JSON API of operators (/internal/lease/admin/…, all
// tenants) and of tenant admins (/brain/{tenant}/admin/leases…, their own
// tenant) over gateway/admin/view (spec §9). openapi.yaml beside this file
// describes it and is served by it.
//
// The gateway mounts it so:
//
//	api, err := admin.New(admin.Options{View: d, Authority: who, Log: log})
//	internal.Handle("/internal/lease/admin/", api.Internal()) // internal listener
//	clients.Handle("/brain/", api.Tenant())                   // client listener
//
// Who asks is the gateway's business: Authority looks at the request's
// credential, with InternalToken for X-Vance-Internal-Token. The handlers bound
// their own time and bodies and log refusals; they expect the request's whole
// path.
//
// It must not know sessions, documents or the page.
package admin
