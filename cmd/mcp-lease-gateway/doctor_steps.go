package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// The steps, as they are printed.
const (
	stepOpen   = "open"
	stepList   = "list"
	stepCall   = "call"
	stepSecond = "second session"
	stepClose  = "close"
	stepEra    = "2026-07-28 first"
)

// namesShown is how many of the server's tools are named.
const namesShown = 12

// connect opens a session as one client; with eras it tries the revision without
// sessions first, as the newest clients do.
func (d *doctor) connect(ctx context.Context, eras bool) (*client.Client, *mcp.InitializeResult, error) {
	d.wire.forget()
	t, err := transport.NewStreamableHTTP(d.url.String(), transport.WithHTTPBasicClient(d.wire.client()))
	if err != nil {
		return nil, nil, err
	}
	version := mcp.LATEST_LEGACY_PROTOCOL_VERSION
	if eras {
		version = mcp.LATEST_PROTOCOL_VERSION
	}
	c := client.NewClient(t, client.WithProtocolVersion(version), client.WithDiscoverTimeout(d.timeout))
	// Start's context bounds the client's life, which ends with Close.
	if err := c.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	var req mcp.InitializeRequest
	req.Params.ClientInfo = mcp.Implementation{Name: "mcp-lease-gateway doctor", Version: version}
	res, err := c.Initialize(ctx, req)
	if err != nil {
		_ = c.Close() // it opened nothing
		return nil, nil, err
	}
	return c, res, nil
}

// open is the first step, without which there is no other.
func (d *doctor) open(ctx context.Context) *client.Client {
	began := time.Now()
	c, res, err := d.connect(ctx, false)
	if err != nil {
		d.found.Unreachable = unreached(err)
		d.found.add(stepOpen, began, false, d.explain(err), meaning(err, d.wire.refusal()))
		return nil
	}
	says := fmt.Sprintf("%s %s speaks %s", res.ServerInfo.Name, res.ServerInfo.Version, res.ProtocolVersion)
	if c.GetSessionId() == "" {
		d.found.add(stepOpen, began, true, says+", without a session", "")
		return c
	}
	d.found.add(stepOpen, began, true, says+", with a session", "")
	return c
}

func (d *doctor) list(ctx context.Context, c *client.Client) {
	began := time.Now()
	if c.GetServerCapabilities().Tools == nil {
		d.found.add(stepList, began, true, "the server has no tools", "")
		return
	}
	tools, err := d.tools(ctx, c)
	if err != nil {
		d.found.add(stepList, began, false, d.explain(err), "")
		return
	}
	names := tools
	more := ""
	if len(names) > namesShown {
		names, more = names[:namesShown], ", …"
	}
	d.found.add(stepList, began, true, count(len(tools), "tool")+": "+strings.Join(names, ", ")+more, "")
}

func (d *doctor) tools(ctx context.Context, c *client.Client) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	d.wire.forget()
	res, err := c.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range res.Tools {
		names = append(names, t.Name)
	}
	return names, nil
}

func (d *doctor) call(ctx context.Context, c *client.Client) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	d.wire.forget()
	var req mcp.CallToolRequest
	req.Params.Name, req.Params.Arguments = d.tool, d.args
	res, err := c.CallTool(ctx, req)
	if err != nil {
		d.found.add(stepCall, began, false, d.tool+": "+d.explain(err), "")
		return
	}
	var texts []string
	for _, content := range res.Content {
		if text, is := content.(mcp.TextContent); is {
			texts = append(texts, text.Text)
		} else {
			texts = append(texts, fmt.Sprintf("[%T]", content))
		}
	}
	d.found.add(stepCall, began, !res.IsError, d.tool+": "+strings.Join(texts, " "), "")
}

// second opens another session beside the first and returns the one that lives.
func (d *doctor) second(ctx context.Context, first *client.Client) *client.Client {
	if first.GetSessionId() == "" {
		return first // nothing to hold
	}
	began := time.Now()
	c, _, err := d.connect(ctx, false)
	if err != nil {
		busy := strings.Contains(err.Error(), lease.CodeBusy)
		d.found.add(stepSecond, began, busy, "refused: "+d.explain(err), meaning(err, d.wire.refusal()))
		return first
	}
	if _, err := d.tools(ctx, first); err != nil && first.GetServerCapabilities().Tools != nil {
		d.found.add(stepSecond, began, true, "takes the place of the first, which reads: "+d.explain(err),
			"Two clients of one user cannot work here at the same time; the newer one wins.")
		_ = first.Close() // it is lost
		return c
	}
	d.found.add(stepSecond, began, true, "opens beside the first", "")
	_ = c.Close() // the step close looks at the first one's
	return first
}

func (d *doctor) end(c *client.Client) {
	began := time.Now()
	had := c.GetSessionId() != ""
	d.wire.forget()
	_ = c.Close() // mcp-go reports nothing
	switch status := d.wire.deleteStatus(); {
	case !had:
		d.found.add(stepClose, began, true, "there is no session to end", "")
	case status == 0:
		d.found.add(stepClose, began, false, "the DELETE was not answered", "A slot comes back only when the session has been idle for the lease's TTL.")
	case status == http.StatusMethodNotAllowed:
		d.found.add(stepClose, began, true, "the server lets no client end a session (HTTP 405)", "It ends when it has been idle for long enough.")
	case status >= http.StatusBadRequest:
		d.found.add(stepClose, began, false, fmt.Sprintf("the DELETE was refused: HTTP %d: %s", status, d.wire.refusal().text), "")
	default:
		d.found.add(stepClose, began, true, fmt.Sprintf("ended (HTTP %d); a slot that it held is free", status), "")
	}
}

// rpcUnsupportedVersion is the error that some clients take for a server of the
// newest revision's, from which they do not fall back.
const rpcUnsupportedVersion = -32022

// otherEra comes again as a client that tries the revision without sessions first.
func (d *doctor) otherEra(ctx context.Context) {
	began := time.Now()
	c, res, err := d.connect(ctx, true)
	if err != nil {
		d.found.add(stepEra, began, false, d.explain(err), meaning(err, d.wire.refusal()))
		return
	}
	defer func() { _ = c.Close() }() // the step close has looked at a DELETE
	if mcp.IsModernProtocol(res.ProtocolVersion) {
		d.found.add(stepEra, began, true, "works without a session", "")
		return
	}
	means := ""
	if d.wire.refusal().code == rpcUnsupportedVersion {
		means = "The refusal has the code -32022, at which some clients (the AI SDK) give up instead of falling back."
	}
	d.found.add(stepEra, began, true, "falls back to a session of "+res.ProtocolVersion, means)
}

// explain says an error in the server's own words where it gave some.
func (d *doctor) explain(err error) string {
	var reach *url.Error
	switch refused := d.wire.refusal(); {
	case refused.status != 0 && !strings.Contains(err.Error(), lease.CodeBusy):
		return fmt.Sprintf("HTTP %d: %s", refused.status, refused.text)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %s", d.timeout)
	case errors.As(err, &reach):
		return "it cannot be reached: " + reach.Err.Error() // without the URL, which may hold a secret
	}
	return err.Error()
}

// meaning says what a client's user does about an error.
func meaning(err error, refused doctorRefusal) string {
	switch text := err.Error() + refused.text; {
	case strings.Contains(text, lease.CodeBusy):
		return "A client reads this sentence while others hold the slots; it may try again."
	case refused.status == http.StatusUnauthorized:
		return "The credential is missing or not accepted: give it with --token-file or --header."
	case refused.status == http.StatusNotFound:
		return "There is no such server in this project, or no MCP server at this address."
	case errors.Is(err, transport.ErrLegacySSEServer) && refused.status == http.StatusMethodNotAllowed:
		return "The server may speak only the transport of 2024-11-05 (HTTP+SSE)."
	}
	return ""
}

// unreached reports whether nothing answered at the URL.
func unreached(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, context.DeadlineExceeded)
}
