package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/client"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/gateway/peers"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// leaseDeps is what the commands need of the rest of the program.
type leaseDeps struct {
	// config reads gateway.yaml, or only what `lease` needs of it.
	config func(path string) (*config.Gateway, error)
	// audit is the file of the audit log that gateway.yaml names; "" is none.
	audit func(path string) (string, error)
	// token is the internal token of this gateway, also where the pod made it.
	token func(*config.Gateway) (string, error)
	// store opens the store. An embedded store that a pod has open is refused.
	store func(context.Context, *config.Gateway) (lease.Store, error)
	// definitions reads documents past every cache.
	definitions func(context.Context, *config.Gateway) (definition.Resolver, func(), error)
	// terminal reports whether r is one that a person sits at.
	terminal func(r io.Reader) bool
}

// reader is what can be looked at from wherever the command looks.
type reader interface {
	Holders(ctx context.Context, q view.HolderQuery) (view.HolderPage, error)
	Holder(ctx context.Context, token string) (view.Holder, error)
	Counters(ctx context.Context, q view.CounterQuery) (view.CounterPage, error)
}

// place is where a command looks and acts. Its members are opened when they are
// first needed.
type place struct {
	tool   *leaseTool
	conf   *config.Gateway // nil with --endpoint
	store  lease.Store
	record *record // opened before anything is done without a pod
}

// reach opens what every command needs: the configuration.
func (t *leaseTool) reach() (*place, error) {
	if t.flags.endpoint != "" {
		return &place{tool: t}, nil
	}
	g, err := t.config(t.flags.config)
	if err != nil {
		return nil, err
	}
	return &place{tool: t, conf: g}, nil
}

// close frees what was opened. Its error is of the record: an audit line that may
// not last.
func (p *place) close() error {
	if p.store != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = p.store.Close(ctx)
	}
	if p.record != nil {
		return p.record.close()
	}
	return nil
}

// shared reports whether the store can be read beside running pods.
func (p *place) shared() bool { return p.conf != nil && !p.conf.Embedded() }

// reader reads the store directly where pods share it, so that it works with
// every pod down, and asks a pod else.
func (p *place) reader(ctx context.Context) (reader, error) {
	if p.shared() {
		return p.direct(ctx)
	}
	var found reader
	err := p.pod(ctx, func(c *client.Client) error {
		// Reaching it is seen at the first question; a client costs nothing.
		found = c
		return nil
	})
	return found, err
}

// contactTime is how long the store may take to show that it is there.
const contactTime = 3 * time.Second

// direct opens the store.
func (p *place) direct(ctx context.Context) (*directView, error) {
	if p.conf == nil {
		return nil, usage(errors.New("with --endpoint there is no store to reach: name gateway.yaml with --config"))
	}
	if p.store == nil {
		s, err := p.tool.store(ctx, p.conf)
		if err != nil {
			return nil, unreachable(err)
		}
		p.store = s
		// A store that is not there is said in a moment, not at the end of the time.
		look, cancel := context.WithTimeout(ctx, contactTime)
		defer cancel()
		if err := s.Ping(look); err != nil {
			return nil, view.Unreachable(err)
		}
	}
	return newDirectView(p.store, p.conf.Lease.ReconcileSafety)
}

// forced opens the store to act on it without a pod, and the audit log that takes
// the record.
func (p *place) forced(ctx context.Context, c *cobra.Command) (*forcedView, error) {
	if _, err := p.direct(ctx); err != nil {
		return nil, err
	}
	r, err := p.tool.openRecord(ctx, c)
	if err != nil {
		return nil, err
	}
	p.record = r
	return newForcedView(p.store, p.conf.Lease.ReconcileSafety, r)
}

// pod runs act on a pod: the one of --endpoint or of gateway.yaml, or, where
// that one cannot be reached and the store is shared, another that lives.
func (p *place) pod(ctx context.Context, act func(*client.Client) error) error {
	if p.conf == nil {
		token, err := readToken(p.tool.flags.tokenFile)
		if err != nil {
			return err
		}
		c, err := p.client(p.tool.flags.endpoint, token)
		if err != nil {
			return usage(err)
		}
		return act(c)
	}
	token, err := p.tool.token(p.conf)
	if err != nil {
		return err
	}
	if token == "" {
		return unreachable(fmt.Errorf("there is no internal token for a pod: %s has none in internal.tokens, and no pod has made one beside the store", p.conf.Path))
	}
	first, err := p.client(p.url(p.conf.Pod.Endpoint), token)
	if err != nil {
		return err
	}
	err = act(first)
	if !notConnected(err) || !p.shared() {
		return err
	}
	d, storeErr := p.direct(ctx)
	if storeErr != nil {
		return err // the pod that was asked for says more
	}
	pods, storeErr := d.all.Engine.Pods(ctx)
	if storeErr != nil {
		return err
	}
	for _, other := range pods {
		if other.State == lease.PodStopped || other.BeatAge > p.conf.Pod.StaleAfter || other.Endpoint == "" || other.Endpoint == p.conf.Pod.Endpoint {
			continue
		}
		c, clientErr := p.client(p.url(other.Endpoint), token)
		if clientErr != nil {
			continue
		}
		if otherErr := act(c); !notConnected(otherErr) {
			return otherErr
		}
	}
	return err
}

// notConnected says that nothing was sent, so that another pod may be asked
// without doing anything twice.
func notConnected(err error) bool {
	var none *client.UnreachableError
	var op *net.OpError
	return errors.As(err, &none) && errors.As(none.Err, &op) && op.Op == "dial"
}

func (p *place) url(endpoint string) string {
	if p.conf.TLS.Cert != "" {
		return "https://" + endpoint
	}
	return "http://" + endpoint
}

func (p *place) client(endpoint, token string) (*client.Client, error) {
	trust, err := p.trust()
	if err != nil {
		return nil, err
	}
	return client.New(endpoint, token, operatorName(), &http.Client{Transport: &http.Transport{
		// No proxy: the internal token goes to pods only.
		DialContext:         (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		TLSClientConfig:     trust,
	}})
}

// trust is how a pod is recognised over TLS: as the pods recognise each other,
// by the certificate of gateway.yaml, or with --endpoint by the system's
// authorities and those of --ca-file.
func (p *place) trust() (*tls.Config, error) {
	if p.conf != nil && p.conf.TLS.Cert != "" {
		own, err := certificates(p.conf.TLS.Cert)
		return peers.ClientTLS(func() *tls.Certificate { return own }), err
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if name := p.tool.flags.caFile; name != "" {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s holds no certificate", name)
		}
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// certificates reads the public part of a certificate file; the key is the
// pods' alone.
func certificates(name string) (*tls.Certificate, error) {
	rest, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" {
			c.Certificate = append(c.Certificate, block.Bytes)
		}
	}
	if len(c.Certificate) == 0 {
		return nil, fmt.Errorf("%s holds no certificate", name)
	}
	return c, nil
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("%s must hold one line: the internal token", path)
	}
	return token, nil
}

// operatorName names who acts, for the record: the user of the operating system,
// by number where that has no name (a container's), and the host.
func operatorName() string {
	name := fmt.Sprint("uid ", os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
