package refusal

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// Codes in error.data that are not the lease engine's.
const (
	CodeUpstream = "UPSTREAM_UNAVAILABLE"
	CodeLimit    = "LIMIT_REACHED"
	CodeDraining = "GATEWAY_STOPPING"
	CodeSession  = "SESSION_UNKNOWN"
)

// JSON-RPC codes: the protocol's own, and the gateway's, which lie outside the
// range that the protocol reserves.
const (
	// RPCBusy is that of LEASE_BUSY and LIMIT_REACHED: in no range that a client
	// takes for an HTTP status or for the protocol's own.
	RPCBusy        = 1429
	RPCParse       = -32700
	RPCInvalid     = -32600
	RPCNoMethod    = -32601
	RPCUnsupported = -32022
)

// Revisions are the revisions with sessions over Streamable HTTP, newest
// first.
var Revisions = []string{"2025-11-25", "2025-06-18", "2025-03-26"}

// Form is how a refusal is told.
type Form uint8

const (
	// AsStatus is an HTTP status with a JSON-RPC error as its body.
	AsStatus Form = iota
	// AsError is a JSON-RPC error with HTTP 200 where a request waits for a
	// response, and AsStatus where none does.
	AsError
	// AsResult is the result of a tools/call that says isError, which a person gets
	// to read in every client; AsError for what else waits.
	AsResult
	// Empty is an HTTP status without a body.
	Empty
	// StandsBy is a stream on which nothing comes, which the caller serves.
	StandsBy
	// Silent is for a client that is gone, or has its answer from another pod.
	Silent
)

// Refusal is an answer of the gateway itself.
type Refusal struct {
	Form       Form
	Status     int // HTTP, unless it is told as a JSON-RPC error
	Code       int // JSON-RPC
	Message    string
	Data       any
	RetryAfter time.Duration
	Allow      string
}

// Data is error.data of the gateway's refusals.
type Data struct {
	lease.RefusalData
	Limit string `json:"limit,omitempty"`
}

type rpcError struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   rpcErrorBody    `json:"error"`
}

type rpcErrorBody struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// Render makes the error message for one id; nil stands for null.
func (f *Refusal) Render(id []byte) []byte {
	if id == nil {
		id = []byte("null")
	}
	return encode(rpcError{JSONRPC: "2.0", ID: id, Error: rpcErrorBody{f.Code, f.Message, f.Data}})
}

// Respond makes the response to one message: an error, or a tool's result.
func (f *Refusal) Respond(m *wire.Message, body []byte) []byte {
	if !m.Request() {
		return f.Render(nil)
	}
	if f.Form != AsResult || m.Method != "tools/call" {
		return f.Render(m.ID.Of(body))
	}
	return encode(toolResponse{JSONRPC: "2.0", ID: m.ID.Of(body), Result: toolResult{
		Content: []toolText{{Type: "text", Text: f.Message}}, IsError: true, Meta: map[string]any{MetaError: f.Data},
	}})
}

// MetaError is the member of a result's _meta that has the data of an error.
const MetaError = "mcp-lease-gateway/error"

type toolResponse struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  toolResult      `json:"result"`
}

type toolResult struct {
	Content []toolText     `json:"content"`
	IsError bool           `json:"isError"`
	Meta    map[string]any `json:"_meta"`
}

type toolText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // an id is valid JSON and the rest is ours
	}
	return b
}

// Write answers with the refusal: one error for the request, or one for each
// request of a batch.
func (f *Refusal) Write(w http.ResponseWriter, body []byte, env *wire.Envelope) {
	if f.Form == Empty {
		w.WriteHeader(f.Status)
		return
	}
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Cache-Control"] = []string{"no-store"}
	if f.RetryAfter > 0 {
		h["Retry-After"] = []string{strconv.Itoa(int(math.Ceil(f.RetryAfter.Seconds())))}
	}
	if f.Allow != "" {
		h["Allow"] = []string{f.Allow}
	}
	status := f.Status
	if f.Form == AsError && waits(env) {
		status = http.StatusOK
	}
	if f.Form == AsResult && waits(env) {
		status = http.StatusOK
	}
	answer := f.Body(body, env)
	h["Content-Length"] = []string{strconv.Itoa(len(answer))}
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// waits reports whether a message wants a response.
func waits(env *wire.Envelope) bool {
	if env == nil {
		return false
	}
	for i := range env.Messages {
		if env.Messages[i].Request() {
			return true
		}
	}
	return false
}

// Body is the body of the refusal.
func (f *Refusal) Body(body []byte, env *wire.Envelope) []byte {
	if env == nil || env.Batch && f.Form == AsStatus && f.Status == http.StatusBadRequest {
		return f.Render(nil) // a body that is refused as a whole is one error
	}
	if !env.Batch {
		return f.Respond(env.One(), body)
	}
	out := []byte{'['}
	for i := range env.Messages {
		if m := &env.Messages[i]; m.Request() {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, f.Respond(m, body)...)
		}
	}
	if len(out) == 1 {
		return f.Render(nil)
	}
	return append(out, ']')
}

func Bad(code int, format string, args ...any) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Scan says what is wrong with a body.
func Scan(err error) *Refusal {
	if errors.Is(err, wire.ErrSyntax) {
		return Bad(RPCParse, "the body is not valid JSON")
	}
	if errors.Is(err, wire.ErrDepth) {
		return Bad(RPCInvalid, "the body nests deeper than %d levels", wire.MaxDepth)
	}
	return Bad(RPCInvalid, "not a JSON-RPC message: %v", err)
}

// Status is a refusal whose JSON-RPC code is its HTTP status.
func Status(status int, message string) *Refusal {
	return &Refusal{Status: status, Code: status, Message: message}
}

func WrongVerb(message, allow string) *Refusal {
	return &Refusal{Status: http.StatusMethodNotAllowed, Code: http.StatusMethodNotAllowed, Message: message, Allow: allow}
}

func BodyTooLarge(limit int64) *Refusal {
	f := Status(http.StatusRequestEntityTooLarge, "the body is over the gateway's limit limits.requestBody of "+size(limit))
	f.Data = limitData("limits.requestBody", 0)
	return f
}

func UnknownServer() *Refusal {
	return Status(http.StatusNotFound, "there is no such server in this project, or it is disabled")
}

func UnknownSession() *Refusal {
	f := Status(http.StatusNotFound, "unknown session: it has ended, or it is not yours; initialize a new one")
	f.Data = Data{RefusalData: lease.RefusalData{Code: CodeSession}}
	return f
}

// limitData is the data of a limit of the gateway's own.
func limitData(limit string, retryAfter time.Duration) Data {
	d := Data{RefusalData: lease.RefusalData{Code: CodeLimit}, Limit: limit}
	if retryAfter > 0 {
		ms := retryAfter.Milliseconds()
		d.RetryAfterMs = &ms
	}
	return d
}

const limitRetry = 5 * time.Second

func Limit(limit string, max int) *Refusal {
	return &Refusal{Form: AsError, Status: http.StatusTooManyRequests, Code: RPCBusy, RetryAfter: limitRetry,
		Message: fmt.Sprintf("%s: the gateway's limit %s of %d is reached; try again in about 5 s", CodeLimit, limit, max),
		Data:    limitData(limit, limitRetry)}
}

// ShareTaken is LIMIT_REACHED for a caller that has its share of limits.perPod.
func ShareTaken(perPod int) *Refusal {
	f := Limit("limits.perPod", perPod)
	f.Message = fmt.Sprintf("%s: your share of the gateway's limit limits.perPod of %d is in use; end streams and calls that you need no more, or try again in about 5 s",
		CodeLimit, perPod)
	return f
}

// BodiesFull is LIMIT_REACHED for a body that finds no room in memory.
func BodiesFull() *Refusal {
	return &Refusal{Status: http.StatusServiceUnavailable, Code: http.StatusServiceUnavailable, RetryAfter: limitRetry,
		Message: CodeLimit + ": your share of the memory that the gateway has for request bodies is in use; try again in about 5 s",
		Data:    limitData("limits.requestBody", limitRetry)}
}

func Stopping() *Refusal {
	ms := int64(2000)
	return &Refusal{Form: AsError, Status: http.StatusServiceUnavailable, Code: http.StatusServiceUnavailable, RetryAfter: 2 * time.Second,
		Message: CodeDraining + ": this gateway process is stopping and takes no new session; try again in about 2 s",
		Data:    Data{RefusalData: lease.RefusalData{Code: CodeDraining, RetryAfterMs: &ms}}}
}

// UpstreamDown is UPSTREAM_UNAVAILABLE; why continues "the server … cannot be used:".
func UpstreamDown(server, why string) *Refusal {
	return &Refusal{Form: AsError, Status: http.StatusBadGateway, Code: http.StatusBadGateway,
		Data:    Data{RefusalData: lease.RefusalData{Code: CodeUpstream}},
		Message: fmt.Sprintf("%s: the server %s cannot be used: %s", CodeUpstream, server, why)}
}

// Lease is LEASE_BUSY or LEASE_UNAVAILABLE.
func Lease(err error) *Refusal {
	l := lease.RefusalOf(err)
	f := &Refusal{Form: AsError, Status: http.StatusServiceUnavailable, Message: l.Message, Data: Data{RefusalData: l.Data}, RetryAfter: l.RetryAfter}
	f.Code = f.Status
	if l.Data.Code == lease.CodeBusy {
		f.Status, f.Code = http.StatusTooManyRequests, RPCBusy
	}
	return f
}

// rpcLost is the JSON-RPC code of LEASE_LOST.
const rpcLost = http.StatusGone

// Lost is LEASE_LOST: HTTP 404, or a JSON-RPC error for a caller that
// stays on its id, whose next call opens the session again.
func Lost(reason lease.Reason, stays bool) *Refusal {
	l := lease.RefusalOf(&lease.LostError{Reason: reason})
	f := &Refusal{Status: http.StatusNotFound, Code: rpcLost, Message: l.Message + "; initialize a new session", Data: Data{RefusalData: l.Data}}
	if stays {
		f.Form, f.Message = AsError, l.Message+"; the next call opens a new one"
	}
	return f
}

// ToldOnce is LEASE_LOST for a tools/call of a client that stays on its id: as a
// tool's result, since few clients show their users anything else.
func ToldOnce(reason lease.Reason, lostNow bool) *Refusal {
	f := Lost(reason, true)
	f.Form = AsResult
	next := "What the session had open is gone. The next call opens a new one."
	if !lostNow {
		next = "What the session had open is gone, and a new one is open: call again."
	}
	f.Message = (&lease.LostError{Reason: reason}).Error() + ". " + next
	return f
}

// Accepted is no refusal: the request has its end here.
func Accepted(status int) *Refusal { return &Refusal{Form: Empty, Status: status} }

// LostAtOpen is LEASE_LOST before the session was opened.
func LostAtOpen(reason lease.Reason) *Refusal {
	f := Lost(reason, true)
	f.Message = (&lease.LostError{Reason: reason}).Error() + " while the session was being opened; try again"
	return f
}

func UnsupportedRevision(requested string) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Code: RPCUnsupported,
		Message: fmt.Sprintf("protocol version %q is not supported here; this server speaks %v", requested, Revisions),
		Data: struct {
			Supported []string `json:"supported"`
			Requested string   `json:"requested"`
		}{Revisions, requested}}
}

// UnknownMethod refuses a method that only the other era has.
func UnknownMethod(method string) *Refusal {
	return &Refusal{Status: http.StatusNotFound, Code: RPCNoMethod, Message: fmt.Sprintf("there is no method %s here", method)}
}

// size shows a limit in the unit that a person would use.
func size(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
