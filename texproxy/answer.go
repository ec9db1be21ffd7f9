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

	"github.com/vancetope/mcp-lease-gateway/config/tex"
)

// inspectAtMost is the longest answer that is looked into.
const inspectAtMost = 1 << 20

// answer is an upstream's answer with what could be read of it. Its body gives
// the original bytes, and is the holder's to close.
type answer struct {
	*http.Response
	json  any    // nil where the answer was not read, or is no JSON
	abort func() // ends it from another goroutine
}

// read reads a JSON answer of up to inspectAtMost bytes. An error means that the
// upstream broke off in the middle of it.
func (a *answer) read() error {
	if a.Request.Method == http.MethodHead || !isJSON(a.Header) || a.ContentLength > inspectAtMost {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(a.Body, inspectAtMost+1))
	if err != nil {
		return err
	}
	rest := a.Body
	a.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), rest}
	if len(head) > inspectAtMost {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(head))
	dec.UseNumber()
	if dec.Decode(&a.json) != nil || dec.More() {
		a.json = nil
	}
	return nil
}

func isJSON(h http.Header) bool {
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return false
	}
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}

// pick returns the first id that a description finds in the answer.
func (a *answer) pick(picks []tex.Pick) string {
	for _, p := range picks {
		var text string
		if p.Header != "" {
			text = a.Header.Get(p.Header)
		} else if found := pointer(a.json, p.JSON); len(found) == 1 {
			text, _ = scalar(found[0])
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
func (a *answer) ended(ends []tex.End) (outcome tex.Outcome, ok bool) {
	for _, e := range ends {
		if a.meets(e) {
			return e.Outcome, true
		}
	}
	return "", false
}

func (a *answer) meets(e tex.End) bool {
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
	// Of an array all elements have to have ended.
	found := pointer(a.json, e.JSON)
	return len(found) > 0 && !slices.ContainsFunc(found, func(v any) bool {
		text, ok := scalar(v)
		return !ok || !slices.Contains(e.In, text)
	})
}

// pointer follows a JSON pointer (RFC 6901), in which * stands for every element
// of an array. It returns nothing where it leads nowhere for one of them.
func pointer(v any, p string) []any {
	found := []any{v}
	for token := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		var next []any
		for _, node := range found {
			below := children(node, token)
			if len(below) == 0 {
				return nil
			}
			next = append(next, below...)
		}
		found = next
	}
	return found
}

// children are what a token of a pointer leads to from a node.
func children(node any, token string) []any {
	switch node := node.(type) {
	case map[string]any:
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		if child, ok := node[token]; ok {
			return []any{child}
		}
	case []any:
		if token == "*" {
			return node
		}
		if i, err := strconv.Atoi(token); err == nil && i >= 0 && i < len(node) {
			return node[i : i+1]
		}
	}
	return nil
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
