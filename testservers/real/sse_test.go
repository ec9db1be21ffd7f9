//go:build external

package real

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// A server of the two-endpoint transport of 2024, which nobody here wrote, serves
// clients that speak Streamable HTTP only.
func TestAServerOfHTTPAndSSE(t *testing.T) {
	port := freePort(t)
	server := exec.Command("node", filepath.Join(nodeDir(t), "node_modules/@modelcontextprotocol/server-everything/dist/index.js"), "sse")
	server.Env = append(server.Environ(), fmt.Sprintf("PORT=%d", port))
	start(t, port, server)
	p := pod.Start(t, pod.Config{Documents: map[string]string{
		leaseDocument: lease(60),
		"_vance/_tenant/_vance/server-tools/browser.yaml": fmt.Sprintf(
			"name: browser\ntype: mcp_server\nparameters:\n  transport: sse\n  url: http://localhost:%d/sse\n  lease: browser\n  onBusy: refuse\n", port),
	}})
	for name, c := range map[string]client{"go-sdk": &goClient{t: t}, "mcp-go": &markClient{t: t}} {
		t.Run(name, func(t *testing.T) {
			open(t, c, url(p))
			text, err := c.call("echo", map[string]any{"message": "over two endpoints"})
			if err != nil || !strings.Contains(text, "over two endpoints") {
				t.Errorf("%v: %s", err, text)
			}
			refused(t, (&goClient{t: t}).open(url(p)))
			if err := c.end(); err != nil {
				t.Error(err)
			}
		})
	}
}
