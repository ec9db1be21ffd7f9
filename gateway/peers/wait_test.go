package peers

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// silent is the far end of a connection that takes everything and answers
// nothing: a pod that is frozen. It ends with the connection.
func silent(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		defer func() { _ = far.Close() }()
		for in := bufio.NewReader(far); ; {
			if _, err := in.ReadByte(); err != nil {
				return
			}
		}
	}()
	return near, nil
}

// TestAPodThatDoesNotAnswerIsUnreachableInTime counts in fake time how long each
// wait of a call to another pod lasts (spec §6: 3 s to connect, 15 s to read).
func TestAPodThatDoesNotAnswerIsUnreachableInTime(t *testing.T) {
	for _, x := range []struct {
		name string
		dial func(ctx context.Context, network, address string) (net.Conn, error)
		tls  *tls.Config
		want time.Duration
	}{
		{name: "a connection that is never made", want: 3 * time.Second, dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		{name: "a handshake that is never answered", want: 3 * time.Second, dial: silent, tls: &tls.Config{ServerName: "pods.internal", MinVersion: tls.VersionTLS12}},
		{name: "an answer that never comes, connecting included", want: 18 * time.Second, dial: silent},
		{name: "an answer that never ends", want: 18 * time.Second, dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer func() { _ = far.Close() }()
				r, err := http.ReadRequest(bufio.NewReader(far))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = far.Write([]byte("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100\r\n\r\nhalf of i"))
				_, _ = far.Read(make([]byte, 1)) // until the client has had enough
			}()
			return near, nil
		}},
	} {
		for name, call := range map[string]func(context.Context, *Client, lease.Pod) error{
			"a revocation": func(ctx context.Context, c *Client, p lease.Pod) error { return c.Revoked(ctx, p, "tok") },
			"a changed document": func(ctx context.Context, c *Client, p lease.Pod) error {
				return c.Changed(ctx, []lease.Pod{p}, []document.Change{{}})
			},
		} {
			t.Run(name+": "+x.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ring, err := seal.NewRing(bytes.Repeat([]byte{1}, seal.KeySize))
					if err != nil {
						t.Fatal(err)
					}
					c := NewClient(ClientOptions{Token: "internal-token-of-this-test", Seal: ring, TLS: x.tls})
					defer c.Close()
					c.dial = x.dial
					began := time.Now()
					err = call(t.Context(), c, lease.Pod{ID: "pod-b", Endpoint: "pod-b.internal:8081"})
					if took := time.Since(began); err == nil || took != x.want {
						t.Errorf("%v after %s, want an error after %s", err, took, x.want)
					}
				})
			})
		}
	}
}
