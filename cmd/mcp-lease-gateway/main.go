// Command mcp-lease-gateway is a proxy in front of MCP servers and TeX services
// whose sessions and compiles hold leases.
package main

func main() {}
