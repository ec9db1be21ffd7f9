//go:build external

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// apiKey is the key of a caller that may speak for users; keyHash is its SHA-256.
const (
	apiKey  = "chaos"
	keyHash = "5d5bddb577102d0a960bcf6fea9050c10fe5e9feddcb5c2170ccab872db9ee87"
)

// answer is what a client gets back for one request.
type answer struct {
	status  int
	session string
	code    string // data.code of a JSON-RPC error
	reason  string // data.reason of LEASE_LOST
	message string
}

// caller sends raw MCP requests of one user.
type caller struct {
	http                  *http.Client
	tenant, project, user string
}

func (c *caller) scope() string { return c.tenant + "/" + c.project + "/" + c.user }

func (c *caller) send(ctx context.Context, base, method, session, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, base+"/mcp/"+c.tenant+"/"+c.project+"/browser", bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+apiKey)
	req.Header.Set("X-Vance-User", c.user)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return answer{}, err
	}
	a := answer{status: res.StatusCode, session: res.Header.Get("Mcp-Session-Id")}
	if data := bytes.TrimSpace(text); len(data) > 0 {
		if i := bytes.Index(data, []byte("data: ")); data[0] != '{' && i >= 0 {
			data, _, _ = bytes.Cut(data[i+6:], []byte("\n"))
		}
		var m struct {
			Error *struct {
				Message string
				Data    struct{ Code, Reason string }
			}
		}
		if err := json.Unmarshal(data, &m); err != nil {
			return a, fmt.Errorf("status %d, not JSON: %.200q", res.StatusCode, text)
		}
		if m.Error != nil {
			a.code, a.reason, a.message = m.Error.Data.Code, m.Error.Data.Reason, m.Error.Message
		}
	}
	return a, nil
}

// open initializes under a name that the upstream server shows.
func (c *caller) open(ctx context.Context, base, name string) (answer, error) {
	return c.send(ctx, base, http.MethodPost, "",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":`+strconv.Quote(name)+`,"version":"1"}}}`)
}

func (c *caller) call(ctx context.Context, base, session string) (answer, error) {
	return c.send(ctx, base, http.MethodPost, session,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"navigate","arguments":{"url":"http://127.0.0.1/"}}}`)
}

func (c *caller) end(ctx context.Context, base, session string) error {
	a, err := c.send(ctx, base, http.MethodDelete, session, "")
	if err == nil && a.status >= 300 && a.status != http.StatusNotFound {
		err = errors.New("DELETE: " + strconv.Itoa(a.status))
	}
	return err
}
