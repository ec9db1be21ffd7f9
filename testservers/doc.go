// Package testservers holds the servers and clients that the gateway is tried
// with. Each is a package to be used in a test's own process and, under cmd, a
// program to be run by hand; every program prints "listening on ADDRESS" once it
// does, so that port 0 can be asked for.
//
//	browser     MCP server with sessions, as a browser server has them: counts
//	            them, ends them, delays, asks the client, fails on order
//	stdio       MCP server over stdio that starts a process which leaves its group
//	modern      MCP server without sessions, revision 2026-07-28
//	tex2pdf     TeX service with jobs, real pdflatex, counts compiles
//	texsync     TeX service that answers with the PDF, likewise
//	lean        MCP server that costs almost nothing, for benchmarks
//	load        load program on raw connections, for benchmarks
//	plainproxy  httputil.ReverseProxy, what the gateway is measured against
//	bench       runs the last three and the gateway, and prints the ratios
//
// Nothing here is meant for anything but tests: no limits, secrets in answers.
package testservers
