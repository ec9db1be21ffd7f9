package browser

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// wireTools are the tools that the front answers itself, since they are about
// bytes and streams:
//
//	progress {steps, intervalMs}   an SSE answer with that many progress events
//	ask {what, via, timeoutMs}     asks the client: sampling, elicitation, roots
//	                               or ping, on the call's stream (via post) or the
//	                               GET stream (via get), and returns its answer
//	exact {result}                 the argument as the result, byte for byte
//	digest                         length and SHA-256 of the request's body
//	fault {kind}                   the answer goes wrong; see faults.go
var wireTools = map[string]func(s *Server, w http.ResponseWriter, r *http.Request, e *session, m envelope, body []byte){
	"progress": (*Server).progress,
	"ask":      (*Server).askTool,
	"exact":    (*Server).exact,
	"digest":   (*Server).digest,
	"fault":    (*Server).faultTool,
}

func (s *Server) progress(w http.ResponseWriter, r *http.Request, _ *session, m envelope, _ []byte) {
	var a struct {
		Steps      int    `json:"steps"`
		IntervalMs Millis `json:"intervalMs"`
	}
	_ = json.Unmarshal(m.Params.Arguments, &a)
	startEvents(w)
	for i := range a.Steps {
		if len(m.Params.Meta.ProgressToken) > 0 {
			event := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":%d,"message":"step %d"}}`,
				m.Params.Meta.ProgressToken, i+1, a.Steps, i+1)
			if writeEvent(w, []byte(event)) != nil {
				return
			}
		}
		if !pause(r.Context(), a.IntervalMs) {
			return
		}
	}
	_ = writeEvent(w, textResult(m.ID, fmt.Sprintf("%d steps", a.Steps)))
}

// questions by name: method and params.
var questions = map[string]struct{ method, params string }{
	"sampling":    {"sampling/createMessage", `{"messages":[{"role":"user","content":{"type":"text","text":"What is on the page?"}}],"maxTokens":100}`},
	"elicitation": {"elicitation/create", `{"message":"May I click?","requestedSchema":{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}}`},
	"roots":       {"roots/list", ``},
	"ping":        {"ping", ``},
}

func (s *Server) askTool(w http.ResponseWriter, r *http.Request, e *session, m envelope, _ []byte) {
	var a struct {
		What      string `json:"what"`
		Via       string `json:"via"`
		TimeoutMs Millis `json:"timeoutMs"`
	}
	_ = json.Unmarshal(m.Params.Arguments, &a)
	if a.TimeoutMs == 0 {
		a.TimeoutMs = 30_000
	}
	q, ok := questions[a.What]
	if !ok {
		writeJSON(w, errorResult(m.ID, "no such question: "+a.What))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.TimeoutMs.duration())
	defer cancel()

	send := func(b []byte) error { return writeEvent(w, b) }
	answer := func(b []byte) { _ = writeEvent(w, b) }
	if a.Via == "get" {
		answer = func(b []byte) { writeJSON(w, b) }
		st := s.stream(ctx, e)
		if st == nil {
			writeJSON(w, errorResult(m.ID, "the client has no GET stream"))
			return
		}
		send = st.event
	} else {
		startEvents(w)
	}
	got, err := s.ask(ctx, e, q.method, []byte(q.params), send)
	if err != nil {
		answer(errorResult(m.ID, a.What+": "+err.Error()))
		return
	}
	answer(textResult(m.ID, string(got)))
}

// stream returns a GET stream of the session, waiting for one.
func (s *Server) stream(ctx context.Context, e *session) *stream {
	for {
		s.mu.Lock()
		changed := s.changed
		if n := len(e.streams); n > 0 {
			st := e.streams[n-1]
			s.mu.Unlock()
			return st
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// ask sends a request to the client and returns the client's whole message.
func (s *Server) ask(ctx context.Context, e *session, method string, params []byte, send func([]byte) error) (json.RawMessage, error) {
	answer := make(chan json.RawMessage, 1)
	s.mu.Lock()
	e.asked++
	id := fmt.Sprintf("ask-%d", e.asked)
	e.questions[id] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(e.questions, id)
		s.mu.Unlock()
	}()
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q`, id, method)
	if len(params) > 0 {
		message += `,"params":` + string(params)
	}
	if err := send([]byte(message + "}")); err != nil {
		return nil, err
	}
	select {
	case b := <-answer:
		return b, nil
	case <-e.ctx.Done():
		return nil, errors.New("the session has ended")
	case <-ctx.Done():
		return nil, errors.New("no answer")
	}
}

// answered hands a client's answer to who asked.
func (s *Server) answered(e *session, id json.RawMessage, body []byte) bool {
	var name string
	if json.Unmarshal(id, &name) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, ok := e.questions[name]
	if ok {
		delete(e.questions, name)
		answer <- body
	}
	return ok
}

func (s *Server) exact(w http.ResponseWriter, _ *http.Request, _ *session, m envelope, _ []byte) {
	var a struct {
		Result json.RawMessage `json:"result"`
	}
	_ = json.Unmarshal(m.Params.Arguments, &a)
	writeJSON(w, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, a.Result))
}

func (s *Server) digest(w http.ResponseWriter, _ *http.Request, _ *session, m envelope, body []byte) {
	writeJSON(w, textResult(m.ID, fmt.Sprintf("%d %x", len(body), sha256.Sum256(body))))
}

func (s *Server) faultTool(w http.ResponseWriter, r *http.Request, _ *session, m envelope, _ []byte) {
	var a struct {
		Kind string `json:"kind"`
	}
	_ = json.Unmarshal(m.Params.Arguments, &a)
	if !fail(w, r, a.Kind, m.ID) {
		writeJSON(w, errorResult(m.ID, "no such fault: "+a.Kind))
	}
}

func textResult(id json.RawMessage, text string) []byte {
	t, _ := json.Marshal(text)
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, id, t)
}

func errorResult(id json.RawMessage, text string) []byte {
	t, _ := json.Marshal(text)
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}],"isError":true}}`, id, t)
}

func writeJSON(w http.ResponseWriter, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

func startEvents(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
}

func writeEvent(w http.ResponseWriter, message []byte) error {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(w, "event: message\ndata: %s\n\n", message); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
