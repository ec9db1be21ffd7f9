package texproxy

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// inspectAtMost is the longest answer that is looked into.
const inspectAtMost = 1 << 20

// answer is an upstream's answer with what could be read of it. Its body gives
// the original bytes.
type answer struct {
	*http.Response
	json any  // nil where the answer is not inspectable JSON
	ok   bool // json is what the answer says
}

// inspect reads a JSON answer of up to inspectAtMost bytes. An error means that
// the upstream broke off in the middle of it.
func inspect(resp *http.Response) (*answer, error) {
	a := &answer{Response: resp}
	if resp.Request.Method == http.MethodHead || !isJSON(resp.Header) || resp.ContentLength > inspectAtMost {
		return a, nil
	}
	head, err := readAhead(resp)
	if err != nil {
		return nil, err
	}
	if len(head) > inspectAtMost {
		return a, nil
	}
	dec := json.NewDecoder(bytes.NewReader(head))
	dec.UseNumber()
	if dec.Decode(&a.json) != nil || dec.More() {
		a.json = nil
		return a, nil
	}
	a.ok = true
	return a, nil
}

// readAhead reads an answer, or as much of it as would be looked into and a byte
// more. Its body gives the original bytes still.
func readAhead(resp *http.Response) ([]byte, error) {
	head, err := io.ReadAll(io.LimitReader(resp.Body, inspectAtMost+1))
	if err != nil {
		return nil, err
	}
	rest := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), rest}
	return head, nil
}

func isJSON(h http.Header) bool {
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return false
	}
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}

// pick returns the first id that a description finds in the answer.
func (a *answer) pick(picks []config.TexPick) string {
	for _, p := range picks {
		var text string
		if p.Header != "" {
			text = a.Header.Get(p.Header)
		} else if v, ok := pointer(a.json, p.JSON); ok {
			text, _ = scalar(v)
		}
		if text == "" {
			continue
		}
		if p.Regex == nil {
			return text
		}
		if m := p.Regex.FindStringSubmatch(text); m != nil {
			return m[1]
		}
	}
	return ""
}

// ended returns the first end that the answer meets.
func (a *answer) ended(ends []config.TexEnd) (outcome string, ok bool) {
	for _, e := range ends {
		if a.meets(e) {
			return e.Outcome, true
		}
	}
	return "", false
}

func (a *answer) meets(e config.TexEnd) bool {
	if len(e.Status) > 0 && !slices.Contains(e.Status, a.StatusCode) {
		return false
	}
	if e.Header != "" {
		v := a.Header.Get(e.Header)
		if v == "" || (e.Regex != nil && !e.Regex.MatchString(v)) {
			return false
		}
	}
	if e.JSON == "" {
		return true
	}
	// What stands in the body of a refusal says nothing of the job.
	if len(e.Status) == 0 && a.StatusCode > 299 {
		return false
	}
	v, there := pointer(a.json, e.JSON)
	if e.Absent {
		return !there
	}
	text, isScalar := scalar(v)
	return there && isScalar && slices.Contains(e.In, text)
}

// pointer follows a JSON pointer (RFC 6901).
func pointer(v any, p string) (any, bool) {
	if v == nil {
		return nil, false
	}
	for token := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch node := v.(type) {
		case map[string]any:
			child, ok := node[token]
			if !ok {
				return nil, false
			}
			v = child
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(node) {
				return nil, false
			}
			v = node[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func scalar(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}
