package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
)

// brain behaves on the wire as the client of the Brain does: 2025-03-26, no GET
// stream, no MCP-Protocol-Version, 5 s for initialize, one header with its
// credential, a static URL, no DELETE ever; after an error it stays on its id.
type brain struct {
	url, token, session string
	id                  int
}

const brainOpenTime = 5 * time.Second

func openBrain(ctx context.Context, url, token string, _ func()) (session, error) {
	b := &brain{url: url, token: token}
	open, cancel := context.WithTimeout(ctx, brainOpenTime)
	defer cancel()
	_, err := b.request(open, "initialize", map[string]any{
		"protocolVersion": "2025-03-26", "capabilities": map[string]any{},
		"clientInfo": map[string]any{"name": "vance-brain", "version": "1"},
	})
	if err != nil {
		return nil, fmt.Errorf("MCP initialize failed (HTTP): %w", err)
	}
	resp, err := b.post(ctx, map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
	if err != nil {
		return nil, err
	}
	return b, resp.Body.Close()
}

func (b *brain) list(ctx context.Context) ([]string, error) {
	res, err := b.request(ctx, "tools/list", map[string]any{})
	if err != nil {
		return nil, err
	}
	var tools struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(res, &tools); err != nil {
		return nil, err
	}
	var names []string
	for _, t := range tools.Tools {
		names = append(names, t.Name)
	}
	return names, nil
}

func (b *brain) call(ctx context.Context, tool string, args map[string]any, _ bool) (string, bool, error) {
	res, err := b.request(ctx, "tools/call", map[string]any{"name": tool, "arguments": args})
	if err != nil {
		return "", false, err
	}
	var result struct {
		Content json.RawMessage
		IsError bool
	}
	if err := json.Unmarshal(res, &result); err != nil {
		return "", false, err
	}
	return textOf(result.Content), result.IsError, nil
}

func (b *brain) close() error { return nil }

func (b *brain) post(ctx context.Context, message map[string]any) (*http.Response, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if b.token != "" {
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	if b.session != "" {
		req.Header.Set("Mcp-Session-Id", b.session)
	}
	return http.DefaultClient.Do(req)
}

// message is an answer.
type message struct {
	ID     json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
}

func (b *brain) request(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
	b.id++
	resp, err := b.post(ctx, map[string]any{"jsonrpc": "2.0", "id": b.id, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 400 {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 200))
		return nil, errors.Join(fmt.Errorf("MCP HTTP %d from %s: %s", resp.StatusCode, b.url, text), err)
	}
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		b.session = id
	}
	m, err := answerOf(resp, fmt.Sprint(b.id))
	if err != nil {
		return nil, err
	}
	if m.Error != nil {
		return nil, fmt.Errorf("JSON-RPC error %d: %s", m.Error.Code, m.Error.Message)
	}
	return m.Result, nil
}

// answerOf reads the answer to a request, from a stream where it is one.
func answerOf(resp *http.Response, id string) (message, error) {
	var m message
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return m, err
	}
	if kind == "application/json" {
		return m, json.NewDecoder(resp.Body).Decode(&m)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		var m message
		if err := json.Unmarshal([]byte(data), &m); err != nil {
			return m, err
		}
		if string(m.ID) == id && (m.Result != nil || m.Error != nil) {
			return m, nil
		}
	}
	return m, errors.Join(errors.New("the stream ended without the answer"), lines.Err())
}
