package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway/peers"
)

func newHealthcheckCommand() *cobra.Command {
	var path string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask the gateway on this machine whether it is ready",
		Long: `healthcheck asks /readyz on the internal listener of gateway.yaml. It ends with 0 where
the gateway is ready and with 1 where it is not or does not answer: for the health checks
of containers, whose images have no other program that could ask.`,
		Example: `  mcp-lease-gateway healthcheck --config /etc/mcp-lease-gateway/gateway.yaml`,
		Args:    wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := loadForLease(path, os.LookupEnv)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			if err := askReady(ctx, conf); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "ready")
			return err
		},
	}
	configFlag(c, &path)
	c.Flags().DurationVar(&timeout, "timeout", 4*time.Second, "how long the answer may take")
	return c
}

// askReady returns nil where the pod on this machine is ready.
func askReady(ctx context.Context, conf *config.Gateway) error {
	address, err := reachable(conf.Internal.Listen)
	if err != nil {
		return fmt.Errorf("internal.listen in %s: %w", conf.Path, err)
	}
	url, transport := "http://"+address+"/readyz", &http.Transport{} // no proxy: it is this machine
	if conf.TLS.Cert != "" {
		own, err := certificates(conf.TLS.Cert)
		if err != nil {
			return err
		}
		url = "https://" + address + "/readyz"
		transport.TLSClientConfig = peers.ClientTLS(func() *tls.Certificate { return own })
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s has not answered in time", url)
	}
	if err != nil {
		return fmt.Errorf("the gateway does not answer: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return err
	}
	return fmt.Errorf("the gateway is not ready: %s answers %s: %s", url, resp.Status, strings.TrimSpace(string(text)))
}

// reachable is where a program on this machine finds what listens on listen:
// every address of the host means that of the loopback interface.
func reachable(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	if host == "" {
		return net.JoinHostPort("localhost", port), nil
	}
	switch ip := net.ParseIP(host); {
	case ip == nil || !ip.IsUnspecified():
		return listen, nil
	case ip.To4() != nil:
		return net.JoinHostPort("127.0.0.1", port), nil
	}
	return net.JoinHostPort("::1", port), nil
}
