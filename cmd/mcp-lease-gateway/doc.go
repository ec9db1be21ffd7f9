// Command mcp-lease-gateway is a proxy in front of MCP servers and TeX services
// whose sessions and compiles hold leases.
//
// There is a file for each command. pod.go puts a gateway process together from
// the packages below, and nothing else does; the lease commands reach a pod's admin
// API or, where no pod runs, the store itself. What a command prints for people and
// which code it exits with is decided here and nowhere below.
package main
