// Package document finds config texts at (tenant, project, path) and the layers
// that a scope sees: bundled, system, tenant, project. Its sources are a folder, a
// MongoDB collection and the program itself. It notices changes, passes them to its
// subscribers, and caches what others make of the texts until they change.
//
// A text of a tenant or project is hostile input: it is bounded, and a path below
// a tenant's or project's folder leads nowhere else. The package must not know what
// the texts mean.
package document
