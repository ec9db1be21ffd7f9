// Package testservers holds the servers and clients that the gateway is tried
// with. Each is a package to be used in a test's own process and, under cmd, a
// program to be run by hand; every program prints "listening on ADDRESS" once it
// does, so that port 0 can be asked for.
//
// MCP servers, by hand `go run ./testservers/cmd/NAME -help`:
//
//	browser     sessions, as a browser server has them: counts them, ends them,
//	            delays, asks the client, fails on order
//	stdio       over stdio; starts a process that leaves its group
//	modern      without sessions, revision 2026-07-28
//	lean        costs almost nothing, for benchmarks
//
// TeX services: tex2pdf (jobs) and texsync (one POST), with the real pdflatex of
// texengine.
//
// What stands around them:
//
//	load        load program on raw connections
//	plainproxy  httputil.ReverseProxy, what the gateway is measured against
//	bench       `make bench`: runs lean, the two proxies and load, prints ratios
//	demo        `make run`: browser and a gateway in front of it
//	pod         the gateway as a process of its own that tests kill and restart
//	mongo       a MongoDB for tests; flaky: a bad network in front of it
//	real        tests with parts that nobody here wrote (node: the npm ones)
//	listen      what the programs share; output: what a log writes while a test reads
//
// Nothing here is meant for anything but tests: no limits, secrets in answers.
package testservers
