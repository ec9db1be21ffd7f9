// Package e2e drives the page Insights → Leases with a real Chromium, against a
// real pod with real MCP sessions. Its test also takes the screenshot of the
// README, where INSIGHTS_PNG names the file to write (a whole path).
package e2e
