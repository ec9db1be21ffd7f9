// Package browser is a test server that behaves as a browser's MCP server does:
// each session stands for a browser, and the server knows how many there are.
//
// mcp-go speaks the protocol. In front of it stands what a gateway is tried with
// and mcp-go does not do: sessions that end (unknown and ended ids are 404 for
// every verb), authentication for every verb, pings that a silent client is
// dropped for, and tools that need the wire: see the wire tools in wire.go and
// the faults in faults.go.
//
//	/mcp      MCP, Streamable HTTP
//	/stats    GET: Stats. ?live=N (&timeout=10s) answers once N sessions live
//	/control  POST: Control
package browser

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// Auth is a header that every request must carry. The zero value asks for none.
type Auth struct{ Header, Value string }

// Bearer, Basic and APIKey are the usual ones.
func Bearer(token string) Auth { return Auth{"Authorization", "Bearer " + token} }

// Basic is a user name and password.
func Basic(user, password string) Auth {
	return Auth{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))}
}

// APIKey is a key in a header of its own.
func APIKey(header, value string) Auth { return Auth{header, value} }

// Behavior is how the server answers; Control and Set change it at any time.
type Behavior struct {
	Auth            Auth              `json:"-"`
	InitializeDelay Millis            `json:"initializeDelayMs"` // before the session is there
	OpenedDelay     Millis            `json:"openedDelayMs"`     // when it is there and not yet answered
	CallDelay       Millis            `json:"callDelayMs"`       // before each tools/call
	DeleteDelay     Millis            `json:"deleteDelayMs"`
	DeleteStatus    int               `json:"deleteStatus"` // a DELETE is answered with it and ends nothing; 0 = 200 and the end
	GoneStatus      int               `json:"goneStatus"`   // for ids that are not alive; 0 = 404
	NoGet           bool              `json:"noGet"`        // GET is 405
	MaxSessions     int               `json:"maxSessions"`  // more are refused with 503; 0 = any number
	PingEvery       Millis            `json:"pingEveryMs"`  // on each GET stream; 0 = never
	PingTimeout     Millis            `json:"pingTimeoutMs"`
	Faults          map[string]string `json:"faults"` // JSON-RPC method or GET or DELETE → fault
}

// Millis is a duration that JSON writes in milliseconds.
type Millis int64

func (m Millis) duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Server is the test server. Close it to end its sessions.
type Server struct {
	engine *server.StreamableHTTPServer
	mux    *http.ServeMux

	mu       sync.Mutex
	behavior Behavior
	sessions map[string]*session
	count    Stats // the totals only
	changed  chan struct{}
}

// session is one browser.
type session struct {
	id        string
	client    string // clientInfo.name
	opened    time.Time
	used      time.Time
	calls     int
	page      string
	ctx       context.Context // ends with the session
	end       context.CancelFunc
	streams   []*stream
	questions map[string]chan json.RawMessage // to the client, by id
	asked     int
}

// New makes a server.
func New(b Behavior) *Server {
	s := &Server{behavior: b, sessions: map[string]*session{}, changed: make(chan struct{})}
	s.engine = server.NewStreamableHTTPServer(s.tools(),
		server.WithSessionIdManager(manager{s}),
		server.WithStreamableHTTPProtocolVersions("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"),
		server.WithDisableLocalhostProtection(true),
		server.WithStreamableHTTPLogger(slog.New(slog.DiscardHandler)))
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("/mcp", s.serveMCP)
	s.mux.HandleFunc("GET /stats", s.serveStats)
	s.mux.HandleFunc("POST /control", s.serveControl)
	return s
}

// ServeHTTP serves /mcp, /stats and /control.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Close ends all sessions and their streams.
func (s *Server) Close() { s.End() }

// Set changes the behavior.
func (s *Server) Set(change func(*Behavior)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.behavior)
}

// End ends sessions from the server's side, all of them without ids, and returns
// how many there were.
func (s *Server) End(ids ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for id := range s.sessions {
		if len(ids) == 0 || slices.Contains(ids, id) {
			s.remove(id)
			s.count.Ended++
			n++
		}
	}
	return n
}

// remove ends a session; s.mu is held.
func (s *Server) remove(id string) bool {
	e, ok := s.sessions[id]
	if !ok {
		return false
	}
	delete(s.sessions, id)
	e.end()
	s.announce()
	return true
}

// announce wakes those who wait for a change; s.mu is held.
func (s *Server) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// manager gives mcp-go session ids that end.
type manager struct{ s *Server }

func (m manager) Generate() string {
	s := m.s
	s.mu.Lock()
	delay := s.behavior.OpenedDelay
	e := &session{id: rand.Text(), opened: time.Now(), used: time.Now(), questions: map[string]chan json.RawMessage{}}
	e.ctx, e.end = context.WithCancel(context.Background())
	s.sessions[e.id] = e
	s.count.Opened++
	s.count.Peak = max(s.count.Peak, len(s.sessions))
	s.announce()
	s.mu.Unlock()
	time.Sleep(delay.duration())
	return e.id
}

func (m manager) Validate(id string) (ended bool, err error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return m.s.sessions[id] == nil, nil
}

func (m manager) Terminate(id string) (notAllowed bool, err error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.remove(id) {
		m.s.count.Deleted++
	}
	return false, nil
}

// envelope is what the front reads of a message.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name       string          `json:"name"`
		Arguments  json.RawMessage `json:"arguments"`
		ClientInfo struct {
			Name string `json:"name"`
		} `json:"clientInfo"`
		Meta struct {
			ProgressToken json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	} `json:"params"`
}

func (s *Server) serveMCP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	b := s.behavior
	s.mu.Unlock()
	if b.Auth.Header != "" && r.Header.Get(b.Auth.Header) != b.Auth.Value {
		s.mu.Lock()
		s.count.Unauthorized++
		if r.Method == http.MethodDelete {
			s.count.UnauthorizedDeletes++
		}
		s.mu.Unlock()
		w.Header().Set("WWW-Authenticate", `Bearer realm="browser"`)
		http.Error(w, "credentials, please", http.StatusUnauthorized)
		return
	}
	if mcp.IsModernProtocol(r.Header.Get(mcp.HeaderProtocolVersion)) {
		s.engine.ServeHTTP(w, r) // which refuses it with the versions that have sessions
		return
	}
	var body []byte
	var m envelope
	if r.Method == http.MethodPost {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		_ = json.Unmarshal(body, &m) // what is no message is mcp-go's to refuse
	}
	if m.Method == "initialize" {
		s.open(w, r, b, m)
		return
	}

	e, status := s.find(r.Header.Get(server.HeaderKeySessionID), b)
	if status != 0 {
		text := "session not found"
		if status == http.StatusBadRequest {
			text = "Bad Request: No valid session ID provided"
		}
		http.Error(w, text, status)
		return
	}
	// A request ends with its session.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	r = r.WithContext(ctx)

	switch r.Method {
	case http.MethodGet:
		s.listen(w, r, b, e)
	case http.MethodDelete:
		s.delete(w, r, b)
	case http.MethodPost:
		s.post(w, r, b, e, m, body)
	default:
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	}
}

// find returns the living session of an id, or the status for its absence.
func (s *Server) find(id string, b Behavior) (*session, int) {
	if id == "" {
		return nil, http.StatusBadRequest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[id]; e != nil {
		e.used = time.Now()
		return e, 0
	}
	if b.GoneStatus != 0 {
		return nil, b.GoneStatus
	}
	return nil, http.StatusNotFound
}

func (s *Server) open(w http.ResponseWriter, r *http.Request, b Behavior, m envelope) {
	if !pause(r.Context(), b.InitializeDelay) || s.failed(w, r, b, "initialize", m.ID) {
		return
	}
	s.mu.Lock()
	full := b.MaxSessions > 0 && len(s.sessions) >= b.MaxSessions
	if full {
		s.count.Refused++
	}
	s.mu.Unlock()
	if full {
		http.Error(w, "no browser is free", http.StatusServiceUnavailable)
		return
	}
	s.engine.ServeHTTP(w, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[w.Header().Get(server.HeaderKeySessionID)]; e != nil {
		e.client = m.Params.ClientInfo.Name
		s.announce()
	}
}

func (s *Server) delete(w http.ResponseWriter, r *http.Request, b Behavior) {
	s.mu.Lock()
	s.count.DeleteRequests++
	s.announce()
	s.mu.Unlock()
	if !pause(r.Context(), b.DeleteDelay) || s.failed(w, r, b, "DELETE", nil) {
		return
	}
	if b.DeleteStatus != 0 {
		w.WriteHeader(b.DeleteStatus)
		return
	}
	s.engine.ServeHTTP(w, r)
}

func (s *Server) post(w http.ResponseWriter, r *http.Request, b Behavior, e *session, m envelope, body []byte) {
	if m.Method == "" && len(m.ID) > 0 && s.answered(e, m.ID, body) {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if m.Method == string(mcp.MethodToolsCall) {
		s.mu.Lock()
		e.calls++
		s.count.Calls++
		s.announce()
		s.mu.Unlock()
		if !pause(r.Context(), b.CallDelay) {
			return
		}
	}
	if s.failed(w, r, b, m.Method, m.ID) {
		return
	}
	if m.Method == string(mcp.MethodToolsCall) {
		if tool := wireTools[m.Params.Name]; tool != nil {
			tool(s, w, r, e, m, body)
			return
		}
	}
	s.engine.ServeHTTP(w, r)
}

// pause waits, and reports whether the client is still there.
func pause(ctx context.Context, d Millis) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d.duration())
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// listen serves a GET stream: mcp-go's, with the front's own events in it.
func (s *Server) listen(w http.ResponseWriter, r *http.Request, b Behavior, e *session) {
	if s.failed(w, r, b, "GET", nil) {
		return
	}
	if b.NoGet {
		http.Error(w, "no stream here", http.StatusMethodNotAllowed)
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		http.Error(w, "a stream must be accepted", http.StatusNotAcceptable)
		return
	}
	st := &stream{w: w}
	s.mu.Lock()
	e.streams = append(e.streams, st)
	s.announce()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		e.streams = slices.DeleteFunc(e.streams, func(x *stream) bool { return x == st })
		s.announce()
		s.mu.Unlock()
		st.end()
	}()
	if b.PingEvery > 0 {
		go s.ping(r.Context(), b, e, st)
	}
	s.engine.ServeHTTP(st, r)
}

// ping asks the client for a sign of life and drops a session that gives none.
func (s *Server) ping(ctx context.Context, b Behavior, e *session, st *stream) {
	for pause(ctx, b.PingEvery) {
		wait, cancel := context.WithTimeout(ctx, b.PingTimeout.duration())
		_, err := s.ask(wait, e, "ping", nil, st.event)
		cancel()
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.count.Pings++
		if err == nil {
			s.count.Pongs++
		} else if s.remove(e.id) {
			s.count.Ended++
		}
		s.announce()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// stream is a GET stream that two write on: mcp-go, an event a Write, and the
// front.
type stream struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	ended bool
}

func (st *stream) Header() http.Header { return st.w.Header() }

func (st *stream) WriteHeader(status int) { st.w.WriteHeader(status) }

func (st *stream) Write(b []byte) (int, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.w.Write(b)
}

// Flush sends what was written.
func (st *stream) Flush() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.flush()
}

func (st *stream) flush() { _ = http.NewResponseController(st.w).Flush() }

func (st *stream) event(message []byte) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		return io.ErrClosedPipe
	}
	return writeEvent(st.w, message)
}

// end keeps late events off a writer that the HTTP server has taken back.
func (st *stream) end() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended = true
}
