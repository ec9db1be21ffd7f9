// Package helmtest renders the Helm chart with Helm's own library, decodes what
// comes out strictly into the API types and puts the rendered configuration
// before the gateway's check. It is a module of its own, so that the program
// depends on none of that.
package helmtest
