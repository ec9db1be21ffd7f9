// Package real puts the gateway in front of real parts that nobody here wrote:
// Playwright's browser server with Chromium, the TypeScript, mcp-go and go-sdk
// clients, and the MCP conformance suite. Its tests carry the build tag
// "external"; a missing part fails them.
package real
