package gateway_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/gateway"
)

// A request that says its length in two ways is nobody's: a proxy in front may
// have gone by the other one, and what follows it is somebody else's request.
func TestARequestWithTwoLengthsEndsItsConnection(t *testing.T) {
	certificate, err := gateway.LoadCertificate(writePair(t, t.TempDir(), 1), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	const smuggled = "POST /mcp/dev/p/browser HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nsmuggled"
	begin := func(lines string) string {
		return "POST /mcp/dev/p/browser HTTP/1.1\r\nHost: localhost\r\n" + lines + "\r\n"
	}
	for _, listener := range []struct {
		name string
		dial func(addr string) (net.Conn, error)
		opt  func(*gateway.Options)
	}{
		{"plain", func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }, nil},
		{"with TLS", func(addr string) (net.Conn, error) {
			return tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // self-signed
		}, func(o *gateway.Options) { o.Certificate = certificate }},
	} {
		p := serve(t, gatewayConfig(), listener.opt)
		for name, text := range map[string]string{
			"chunks and a length":        begin("Transfer-Encoding: chunked\r\nContent-Length: 112\r\n") + "0\r\n\r\n" + smuggled,
			"a length and chunks":        begin("Content-Length: 112\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n" + smuggled,
			"the same length twice":      begin("Content-Length: 0\r\nContent-Length: 0\r\n") + smuggled,
			"two lengths":                begin("Content-Length: 0\r\nContent-Length: 107\r\n") + smuggled,
			"chunks with a space before": begin("Transfer-Encoding : chunked\r\nContent-Length: 0\r\n") + smuggled,
			"chunks of HTTP/1.0":         strings.Replace(begin("Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n"), "1.1", "1.0", 1) + "0\r\n\r\n" + smuggled,
			"after a request that is none of these": begin("Content-Length: 2\r\n") + "ok" +
				begin("Transfer-Encoding: chunked\r\nContent-Length: 112\r\n") + "0\r\n\r\n" + smuggled,
		} {
			t.Run(name+" "+listener.name, func(t *testing.T) {
				c, err := listener.dial(p.ClientAddr())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				if _, err := io.WriteString(c, text); err != nil {
					t.Fatal(err)
				}
				answer, _ := io.ReadAll(c) // a reset ends it as well
				if got := string(answer); !strings.Contains(got, "HTTP/1.1 400 ") || strings.Contains(got, "smuggled") {
					t.Errorf("%s", got)
				}
			})
		}
	}
}
