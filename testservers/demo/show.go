//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// callTime bounds each step of the show.
const callTime = 20 * time.Second

// show has one user open a session, be refused a second, call a tool, end the
// session and then open another.
func show(ctx context.Context, url string) error {
	fmt.Printf("\nA client of the user ada opens a session:\n")
	first, err := open(ctx, url)
	if err != nil {
		return err
	}
	if first.session == "" {
		return fmt.Errorf("the session was refused: %s", first.message)
	}
	fmt.Printf("  POST %s  initialize\n  -> 200, Mcp-Session-Id: %.12s…\n", url, first.session)

	fmt.Printf("\nA second client of the same user is refused, since the lease caps the user at 1:\n")
	second, err := open(ctx, url)
	if err != nil {
		return err
	}
	if second.session != "" {
		return fmt.Errorf("a second session was opened beside the first: the lease does not hold")
	}
	fmt.Printf("  POST %s  initialize\n  -> %s\n", url, second.message)

	fmt.Printf("\nThe first client calls a tool; each call keeps its lease alive:\n")
	if _, err := post(ctx, url, first.session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
		return err
	}
	call, err := post(ctx, url, first.session, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"navigate","arguments":{"url":"https://example.com/"}}}`)
	if err != nil {
		return err
	}
	fmt.Printf("  POST %s  tools/call navigate\n  -> %s\n", url, clip(string(call.result)+call.message))

	fmt.Printf("\nIt ends its session, which gives the slot back, and the second client gets it:\n")
	status, err := end(ctx, url, first.session)
	if err != nil {
		return err
	}
	fmt.Printf("  DELETE %s\n  -> %d\n", url, status)
	third, err := open(ctx, url)
	if err != nil {
		return err
	}
	if third.session == "" {
		return fmt.Errorf("the slot was not given back: %s", third.message)
	}
	fmt.Printf("  POST %s  initialize\n  -> 200, Mcp-Session-Id: %.12s…\n", url, third.session)
	if _, err := end(ctx, url, third.session); err != nil {
		return err
	}
	return nil
}

// reply is what a request has brought.
type reply struct {
	session string
	result  json.RawMessage
	message string // of a JSON-RPC error
}

func open(ctx context.Context, url string) (reply, error) {
	return post(ctx, url, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"demo","version":"1"}}}`)
}

func post(ctx context.Context, url, session, body string) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	r := reply{session: resp.Header.Get("Mcp-Session-Id")}
	if resp.StatusCode == http.StatusAccepted {
		return r, nil
	}
	text, err := message(resp)
	if err != nil {
		return r, err
	}
	var m struct {
		Result json.RawMessage
		Error  *struct{ Message string }
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return r, fmt.Errorf("%s answered %s: %.200s", url, resp.Status, text)
	}
	r.result = m.Result
	if m.Error != nil {
		r.message = m.Error.Message
	}
	return r, nil
}

// message is the JSON-RPC response in an answer: the body, or the event of an
// SSE stream that has a result or an error.
func message(resp *http.Response) (string, error) {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		text, err := io.ReadAll(resp.Body)
		return string(text), err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if ok && (strings.Contains(data, `"result"`) || strings.Contains(data, `"error"`)) {
			return data, nil
		}
	}
	return "", fmt.Errorf("the stream ended without an answer: %w", lines.Err())
}

func end(ctx context.Context, url, session string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Mcp-Session-Id", session)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func clip(s string) string {
	if len(s) > 160 {
		return s[:160] + "…"
	}
	return s
}
