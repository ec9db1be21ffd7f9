package peers

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// The waits of spec §6: a pod that does not answer within them is unreachable.
const (
	connectTimeout = 3 * time.Second
	readTimeout    = 15 * time.Second
)

const (
	maxFanOut  = 8        // pods told of a change at once
	copyBuffer = 32 << 10 // bytes
	maxAnswer  = 4 << 10  // bytes of a refusal that are read
	keepAlive  = time.Second * 15
)

// ClientOptions configures a Client.
type ClientOptions struct {
	// Token is the internal token that calls are signed with; without one other
	// pods refuse.
	Token string
	// SendToken sends the token as well, for pods of versions that know no
	// signatures, and takes their answers, which prove nothing. While it is set,
	// whoever can write an address into the store is sent the token.
	SendToken bool
	Seal      *seal.Ring
	// TLS is nil where the internal listeners are plain.
	TLS *tls.Config
}

// Client calls other pods. It implements lease.Peers and session.Forwarder.
type Client struct {
	opt    ClientOptions
	key    []byte // of the token
	box    *seal.Box
	scheme string
	http   *http.Client
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// NewClient makes a Client.
func NewClient(opt ClientOptions) *Client {
	c := &Client{opt: opt, key: signingKey(opt.Token), box: opt.Seal.Box(sealPurpose), scheme: "http"}
	if opt.TLS != nil {
		c.scheme = "https"
	}
	c.dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 3}}).DialContext
	c.http = &http.Client{
		// No proxy variables, no redirects, no compression: the internal token goes
		// to the pod that was named and to nobody else.
		Transport: &http.Transport{
			DialContext:         c.connect,
			TLSClientConfig:     opt.TLS,
			TLSHandshakeTimeout: connectTimeout,
			DisableCompression:  true,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     90 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

func (c *Client) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return c.dial(ctx, network, address)
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Revoked asks pod to run the handler of a mark; see lease.Peers.
func (c *Client) Revoked(ctx context.Context, pod lease.Pod, token lease.Token) error {
	body, err := json.Marshal(revoked{Pod: pod.ID, Token: token})
	if err != nil {
		return err
	}
	return c.post(ctx, pod, RevokedPath, body)
}

// Changed tells pods of changed documents, a few at a time. A pod that cannot
// be reached misses it; its caches age out.
func (c *Client) Changed(ctx context.Context, pods []lease.Pod, changes []document.Change) error {
	bodies, err := document.EncodeEvents(changes)
	if err != nil {
		return err
	}
	p := pool.New().WithErrors().WithMaxGoroutines(maxFanOut)
	for _, pod := range pods {
		p.Go(func() error {
			for _, body := range bodies {
				if err := c.post(ctx, pod, ChangedPath, body); err != nil {
					return fmt.Errorf("pod %s: %w", pod.ID, err)
				}
			}
			return nil
		})
	}
	return p.Wait()
}

// post sends a small message and demands a 2xx.
func (c *Client) post(ctx context.Context, pod lease.Pod, path string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout+readTimeout)
	defer cancel()
	resp, err := c.call(ctx, pod, path, "application/json", body)
	if err != nil {
		return err
	}
	defer func() { httpbody.Drain(resp.Body) }()
	if resp.StatusCode/100 != 2 {
		return refused(resp)
	}
	return nil
}

// call posts a body that consists of parts. A success of the answer, if it is one,
// is that of a pod with our token.
func (c *Client) call(ctx context.Context, pod lease.Pod, path, contentType string, parts ...[]byte) (*http.Response, error) {
	if pod.Endpoint == "" {
		return nil, fmt.Errorf("peers: pod %s has no endpoint", pod.ID)
	}
	if c.opt.Token == "" {
		return nil, errors.New("peers: this pod has no internal token to sign with; set internal.tokens in gateway.yaml")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.scheme+"://"+pod.Endpoint+path, nil)
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	for _, part := range parts {
		req.ContentLength += int64(len(part))
	}
	// A body that can be had again goes out again where an idle connection turns
	// out to be gone.
	req.GetBody = func() (io.ReadCloser, error) {
		readers := make([]io.Reader, len(parts))
		for i, part := range parts {
			readers[i] = bytes.NewReader(part)
		}
		return io.NopCloser(io.MultiReader(readers...)), nil
	}
	req.Body, _ = req.GetBody()
	req.Header.Set("Content-Type", contentType)
	req.Header.Set(podHeader, string(pod.ID))
	want := sign(req, c.key, string(pod.ID), parts...)
	if c.opt.SendToken {
		req.Header.Set(headers.InternalToken, c.opt.Token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	proven := hmac.Equal([]byte(resp.Header.Get(proofHeader)), []byte(want))
	if !proven && !c.opt.SendToken && (resp.StatusCode/100 == 2 || resp.Header.Get(relayedHeader) != "") {
		httpbody.Drain(resp.Body)
		return nil, errUnproven
	}
	return resp, nil
}

// errUnproven says that whoever answers at a pod's address is no pod of ours.
var errUnproven = errors.New("peers: the answer does not come from a pod with this pod's internal token")

// ErrOtherPod says that another process answers at the pod's address.
var ErrOtherPod = errors.New("peers: another pod answers there")

func refused(resp *http.Response) error {
	if resp.StatusCode == http.StatusMisdirectedRequest {
		return ErrOtherPod
	}
	return fmt.Errorf("peers: the pod answered %s", resp.Status)
}

// Forward sends a client's request, whose body has been read, to the pod that
// holds its session, and copies the answer as it comes. An error means that
// nothing was written to w; an answer that breaks off later ends the client's
// connection as it would have ended the upstream's.
func (c *Client) Forward(w http.ResponseWriter, r *http.Request, pod lease.Pod, caller principal.Caller, server string, body []byte) error {
	header := http.Header{}
	headers.EndToEnd(header, r.Header)
	head, err := json.Marshal(envelope{
		Tenant: caller.Tenant, Project: caller.Project, User: caller.User, Issuer: caller.Issuer,
		OnLost: caller.OnLost, Authorization: caller.Authorization.Reveal(),
		Server: server, Method: r.Method, URI: r.URL.RequestURI(), Host: r.Host, Remote: r.RemoteAddr,
		Header: header, SentUnixMs: time.Now().UnixMilli(),
	})
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	sealed := c.box.Seal(head, envelopeData(pod.ID))
	if len(sealed) > maxEnvelope {
		return errors.New("peers: the request's headers are too long to forward")
	}
	size := binary.BigEndian.AppendUint32(nil, uint32(len(sealed))) //nolint:gosec // bounded by maxEnvelope above
	// The request ends when the client goes: the pod that has the session decides
	// what that means for the call.
	resp, err := c.call(r.Context(), pod, ForwardPath, "application/octet-stream", size, []byte(sealed), body)
	if err != nil {
		return err
	}
	if resp.Header.Get(relayedHeader) == "" {
		httpbody.Drain(resp.Body)
		return refused(resp)
	}
	defer func() { _ = resp.Body.Close() }()
	relay(w, resp)
	return nil
}

// relay copies an answer to the client, each piece as it arrives.
func relay(w http.ResponseWriter, resp *http.Response) {
	for _, name := range []string{relayedHeader, proofHeader, "X-Request-Id", "Date"} { // this pod has its own
		delete(resp.Header, name)
	}
	headers.EndToEnd(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	buf := make([]byte, copyBuffer)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return // the client is gone
			}
			if ferr := rc.Flush(); ferr != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			// The answer is not whole, and only a cut connection says so.
			panic(http.ErrAbortHandler)
		}
	}
}
