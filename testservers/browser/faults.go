package browser

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// failed answers with the fault that is ordered for this method or verb, if one
// is.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, b Behavior, method string, id json.RawMessage) bool {
	kind := b.Faults[method]
	return kind != "" && fail(w, r, kind, id)
}

// fail answers wrongly:
//
//	cut            the connection ends before an answer
//	dieInStream    the connection ends after one SSE event
//	endOfStream    the SSE answer ends properly after one event, without the result
//	truncated      the connection ends in a JSON body
//	garbage        JSON content type, no JSON
//	eventGarbage   SSE content type, no JSON in the event
//	html           200 and a web page
//	empty          200, JSON content type, nothing
//	wrongID        a result for another id
//	hang           no answer until the client leaves
//	redirect       307 to another host
//	status:N       status N with a text
//	rpcError       a JSON-RPC error with data
func fail(w http.ResponseWriter, r *http.Request, kind string, id json.RawMessage) bool {
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	if n, ok := strings.CutPrefix(kind, "status:"); ok {
		status, err := strconv.Atoi(n)
		if err != nil || status < 200 || status > 599 {
			return false
		}
		http.Error(w, "ordered status", status)
		return true
	}
	switch kind {
	case "cut":
		cut(w)
	case "dieInStream", "endOfStream":
		startEvents(w)
		_ = writeEvent(w, []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"about to die"}}`))
		if kind == "dieInStream" {
			cut(w)
		}
	case "truncated":
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "1000")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"te`, id)
		_ = http.NewResponseController(w).Flush()
		cut(w)
	case "garbage":
		writeJSON(w, []byte("}{ this is no JSON"))
	case "eventGarbage":
		startEvents(w)
		_ = writeEvent(w, []byte("}{ this is no JSON"))
	case "html":
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>Sign in</title>")
	case "empty":
		writeJSON(w, nil)
	case "wrongID":
		writeJSON(w, []byte(`{"jsonrpc":"2.0","id":"somebody else's","result":{}}`))
	case "hang":
		<-r.Context().Done()
	case "redirect":
		w.Header().Set("Location", "http://192.0.2.1/elsewhere")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case "rpcError":
		writeJSON(w, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32050,"message":"ordered error","data":{"n":12345678901234567890,"f":1.0}}}`, id))
	default:
		return false
	}
	return true
}

// cut ends the connection without a word.
func cut(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
