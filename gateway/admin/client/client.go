package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// maxAnswer bounds an answer in bytes: a page of holders is below 2 MiB.
const maxAnswer = 16 << 20

// Client calls one pod. It is safe for concurrent use.
type Client struct {
	base  *url.URL
	token string
	by    string
	http  *http.Client
}

// UnreachableError says that no pod answered.
type UnreachableError struct {
	Endpoint string
	Err      error
}

func (e *UnreachableError) Error() string {
	if errors.Is(e.Err, context.DeadlineExceeded) {
		return "the pod at " + e.Endpoint + " has not answered in time; what it has done by now stands"
	}
	return fmt.Sprintf("no pod answers at %s: %v", e.Endpoint, e.Err)
}
func (e *UnreachableError) Unwrap() error { return e.Err }

// New makes a client for the internal listener at endpoint (http or https, host
// and port). by is who uses the token, for the record. hc bounds the time of each call; it must not follow redirects with
// the token, so its CheckRedirect is replaced.
func New(endpoint, token, by string, hc *http.Client) (*Client, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("the endpoint must be http://host:port or https://host:port of a pod's internal listener")
	}
	own := *hc
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{base: &url.URL{Scheme: u.Scheme, Host: u.Host}, token: token, by: by, http: &own}, nil
}

// Endpoint is where the client calls.
func (c *Client) Endpoint() string { return c.base.String() }

// Holders lists one page of holders.
func (c *Client) Holders(ctx context.Context, q view.HolderQuery) (view.HolderPage, error) {
	return call[view.HolderPage](ctx, c, http.MethodGet, values(map[string]string{"tenant": q.Tenant, "project": q.Project, "user": q.User,
		"resource": q.Resource, "type": q.Type, "pod": q.Pod, "state": strings.Join(q.States, ","), "after": q.After, "limit": number(q.Limit)}), "holders")
}

// Holder shows one holder.
func (c *Client) Holder(ctx context.Context, token string) (view.Holder, error) {
	return call[view.Holder](ctx, c, http.MethodGet, nil, "holders", token)
}

// Counters lists one page of counters.
func (c *Client) Counters(ctx context.Context, q view.CounterQuery) (view.CounterPage, error) {
	drifted := ""
	if q.Drifted {
		drifted = "true"
	}
	return call[view.CounterPage](ctx, c, http.MethodGet, values(map[string]string{"resource": q.Resource, "level": q.Level, "tenant": q.Tenant,
		"project": q.Project, "user": q.User, "drifted": drifted, "after": q.After, "limit": number(q.Limit)}), "counters")
}

// Definition shows a merged definition.
func (c *Client) Definition(ctx context.Context, tenant, project, name string) (view.Definition, error) {
	return call[view.Definition](ctx, c, http.MethodGet, values(map[string]string{"tenant": tenant, "project": project, "name": name}), "definition")
}

// Revoke takes a lease away.
func (c *Client) Revoke(ctx context.Context, token string) (view.Holder, error) {
	return call[view.Holder](ctx, c, http.MethodPost, nil, "holders", token, "revoke")
}

// RevokePod takes every lease of a pod away.
func (c *Client) RevokePod(ctx context.Context, pod string) (view.PodRevoked, error) {
	return call[view.PodRevoked](ctx, c, http.MethodPost, nil, "pods", pod, "revoke")
}

// Sweep runs a reaper round.
func (c *Client) Sweep(ctx context.Context) (lease.Swept, error) {
	return call[lease.Swept](ctx, c, http.MethodPost, nil, "sweep")
}

// Reconcile runs a reconcile pass.
func (c *Client) Reconcile(ctx context.Context) (view.Reconciled, error) {
	return call[view.Reconciled](ctx, c, http.MethodPost, nil, "reconcile")
}

func values(m map[string]string) url.Values {
	v := url.Values{}
	for k, s := range m {
		if s != "" {
			v.Set(k, s)
		}
	}
	return v
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func call[T any](ctx context.Context, c *Client, method string, query url.Values, path ...string) (T, error) {
	var v T
	escaped := make([]string, len(path))
	for i, p := range path {
		// A dot segment would be cleaned away and another address be called.
		if p == "" || p == "." || p == ".." {
			return v, &view.Error{Code: view.Invalid, Message: fmt.Sprintf("%q names nothing", p)}
		}
		escaped[i] = url.PathEscape(p)
	}
	target := c.base.String() + admin.InternalPath + strings.Join(escaped, "/")
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return v, &view.Error{Code: view.Invalid, Message: err.Error()}
	}
	r.Header.Set(headers.InternalToken, c.token)
	if admin.ValidOperator(c.by) {
		r.Header.Set(headers.Operator, c.by)
	}
	r.Header.Set("Accept", "application/json")
	res, err := c.http.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the whole address is of no use to a reader
		}
		return v, &UnreachableError{Endpoint: c.Endpoint(), Err: err}
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return v, &UnreachableError{Endpoint: c.Endpoint(), Err: err}
	}
	if res.StatusCode != http.StatusOK {
		return v, c.refusal(res.StatusCode, body)
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, &UnreachableError{Endpoint: c.Endpoint(), Err: errors.New("the answer is not that of a gateway's admin API")}
	}
	return v, nil
}

func (c *Client) refusal(status int, body []byte) error {
	var f admin.Failure
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(&f); err != nil || f.Error.Message == "" {
		return &UnreachableError{Endpoint: c.Endpoint(), Err: fmt.Errorf("status %d, which is not an answer of a gateway's admin API", status)}
	}
	e := &view.Error{Code: f.Error.Code, Message: f.Error.Message}
	switch e.Code {
	case view.Method: // the path is this package's, so the pod is of another version
		e.Code = view.Invalid
	case view.Unauthenticated, view.Forbidden:
		e.Message = c.Endpoint() + " refuses: " + e.Message
	}
	return e
}
