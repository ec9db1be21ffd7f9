package session

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
	codeUpstream = "UPSTREAM_UNAVAILABLE"
	codeLimit    = "LIMIT_REACHED"
	codeDraining = "GATEWAY_STOPPING"
	codeSession  = "SESSION_UNKNOWN"
)

// JSON-RPC codes: the protocol's own, and the gateway's, which lie outside the
// range that the protocol reserves.
const (
	// rpcBusy is that of LEASE_BUSY and LIMIT_REACHED: in no range that a client
	// takes for an HTTP status or for the protocol's own.
	rpcBusy        = 1429
	rpcParse       = -32700
	rpcInvalid     = -32600
	rpcUnsupported = -32022
)

// form is how a refusal is told.
type form uint8

const (
	// asStatus is an HTTP status with a JSON-RPC error as its body.
	asStatus form = iota
	// asError is a JSON-RPC error with HTTP 200 where a request waits for a
	// response, and asStatus where none does.
	asError
	// asResult is the result of a tools/call that says isError, which a person gets
	// to read in every client; asError for what else waits.
	asResult
	// empty is an HTTP status without a body.
	empty
	// standsBy is a stream on which nothing comes, see standBy.
	standsBy
	// silent is for a client that is gone, or has its answer from another pod.
	silent
)

// refusal is an answer of the gateway itself.
type refusal struct {
	form       form
	status     int // HTTP, unless it is told as a JSON-RPC error
	code       int // JSON-RPC
	message    string
	data       any
	retryAfter time.Duration
	allow      string
}

// refusalData is error.data of the gateway's refusals.
type refusalData struct {
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

// render makes the error message for one id; nil stands for null.
func (f *refusal) render(id []byte) []byte {
	if id == nil {
		id = []byte("null")
	}
	return encode(rpcError{JSONRPC: "2.0", ID: id, Error: rpcErrorBody{f.code, f.message, f.data}})
}

// respond makes the response to one message: an error, or a tool's result.
func (f *refusal) respond(m *wire.Message, body []byte) []byte {
	if !m.Request() {
		return f.render(nil)
	}
	if f.form != asResult || m.Method != "tools/call" {
		return f.render(m.ID.Of(body))
	}
	return encode(toolResponse{JSONRPC: "2.0", ID: m.ID.Of(body), Result: toolResult{
		Content: []toolText{{Type: "text", Text: f.message}}, IsError: true, Meta: map[string]any{metaError: f.data},
	}})
}

// metaError is the member of a result's _meta that has the data of an error.
const metaError = "mcp-lease-gateway/error"

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

// write answers with the refusal: one error for the request, or one for each
// request of a batch.
func (f *refusal) write(w http.ResponseWriter, body []byte, env *wire.Envelope) {
	if f.form == empty {
		w.WriteHeader(f.status)
		return
	}
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Cache-Control"] = []string{"no-store"}
	if f.retryAfter > 0 {
		h["Retry-After"] = []string{strconv.Itoa(int(math.Ceil(f.retryAfter.Seconds())))}
	}
	if f.allow != "" {
		h["Allow"] = []string{f.allow}
	}
	status := f.status
	if f.form == asError && waits(env) {
		status = http.StatusOK
	}
	if f.form == asResult && waits(env) {
		status = http.StatusOK
	}
	answer := f.answer(body, env)
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

// answer is the body of the refusal.
func (f *refusal) answer(body []byte, env *wire.Envelope) []byte {
	if env == nil || env.Batch && f.form == asStatus && f.status == http.StatusBadRequest {
		return f.render(nil) // a body that is refused as a whole is one error
	}
	if !env.Batch {
		return f.respond(env.One(), body)
	}
	out := []byte{'['}
	for i := range env.Messages {
		if m := &env.Messages[i]; m.Request() {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, f.respond(m, body)...)
		}
	}
	if len(out) == 1 {
		return f.render(nil)
	}
	return append(out, ']')
}

func badRequest(code int, format string, args ...any) *refusal {
	return &refusal{status: http.StatusBadRequest, code: code, message: fmt.Sprintf(format, args...)}
}

// scanRefusal says what is wrong with a body.
func scanRefusal(err error) *refusal {
	if errors.Is(err, wire.ErrSyntax) {
		return badRequest(rpcParse, "the body is not valid JSON")
	}
	if errors.Is(err, wire.ErrDepth) {
		return badRequest(rpcInvalid, "the body nests deeper than %d levels", wire.MaxDepth)
	}
	return badRequest(rpcInvalid, "not a JSON-RPC message: %v", err)
}

// refuseStatus is a refusal whose JSON-RPC code is its HTTP status.
func refuseStatus(status int, message string) *refusal {
	return &refusal{status: status, code: status, message: message}
}

func wrongVerb(message, allow string) *refusal {
	return &refusal{status: http.StatusMethodNotAllowed, code: http.StatusMethodNotAllowed, message: message, allow: allow}
}

func bodyTooLarge(limit int64) *refusal {
	f := refuseStatus(http.StatusRequestEntityTooLarge, "the body is over the gateway's limit limits.requestBody of "+size(limit))
	f.data = limitData("limits.requestBody", 0)
	return f
}

func unknownServer() *refusal {
	return refuseStatus(http.StatusNotFound, "there is no such server in this project, or it is disabled")
}

func unknownSession() *refusal {
	f := refuseStatus(http.StatusNotFound, "unknown session: it has ended, or it is not yours; initialize a new one")
	f.data = refusalData{RefusalData: lease.RefusalData{Code: codeSession}}
	return f
}

// limitData is the data of a limit of the gateway's own.
func limitData(limit string, retryAfter time.Duration) refusalData {
	d := refusalData{RefusalData: lease.RefusalData{Code: codeLimit}, Limit: limit}
	if retryAfter > 0 {
		ms := retryAfter.Milliseconds()
		d.RetryAfterMs = &ms
	}
	return d
}

const limitRetry = 5 * time.Second

func limitReached(limit string, max int) *refusal {
	return &refusal{form: asError, status: http.StatusTooManyRequests, code: rpcBusy, retryAfter: limitRetry,
		message: fmt.Sprintf("%s: the gateway's limit %s of %d is reached; try again in about 5 s", codeLimit, limit, max),
		data:    limitData(limit, limitRetry)}
}

// shareTaken is LIMIT_REACHED for a caller that has its share of limits.perPod.
func (p *Proxy) shareTaken() *refusal {
	f := limitReached("limits.perPod", p.opt.Limits().PerPod)
	f.message = fmt.Sprintf("%s: your share of the gateway's limit limits.perPod of %d is in use; end streams and calls that you need no more, or try again in about 5 s",
		codeLimit, p.opt.Limits().PerPod)
	return f
}

// bodiesFull is LIMIT_REACHED for a body that finds no room in memory.
func bodiesFull() *refusal {
	return &refusal{status: http.StatusServiceUnavailable, code: http.StatusServiceUnavailable, retryAfter: limitRetry,
		message: codeLimit + ": your share of the memory that the gateway has for request bodies is in use; try again in about 5 s",
		data:    limitData("limits.requestBody", limitRetry)}
}

func stopping() *refusal {
	ms := int64(2000)
	return &refusal{form: asError, status: http.StatusServiceUnavailable, code: http.StatusServiceUnavailable, retryAfter: 2 * time.Second,
		message: codeDraining + ": this gateway process is stopping and takes no new session; try again in about 2 s",
		data:    refusalData{RefusalData: lease.RefusalData{Code: codeDraining, RetryAfterMs: &ms}}}
}

// upstreamDown is UPSTREAM_UNAVAILABLE; why continues "the server … cannot be used:".
func upstreamDown(server, why string) *refusal {
	return &refusal{form: asError, status: http.StatusBadGateway, code: http.StatusBadGateway,
		data:    refusalData{RefusalData: lease.RefusalData{Code: codeUpstream}},
		message: fmt.Sprintf("%s: the server %s cannot be used: %s", codeUpstream, server, why)}
}

// leaseRefusal is LEASE_BUSY or LEASE_UNAVAILABLE.
func leaseRefusal(err error) *refusal {
	l := lease.RefusalOf(err)
	f := &refusal{form: asError, status: http.StatusServiceUnavailable, message: l.Message, data: refusalData{RefusalData: l.Data}, retryAfter: l.RetryAfter}
	f.code = f.status
	if l.Data.Code == lease.CodeBusy {
		f.status, f.code = http.StatusTooManyRequests, rpcBusy
	}
	return f
}

// rpcLost is the JSON-RPC code of LEASE_LOST.
const rpcLost = http.StatusGone

// sessionLost is LEASE_LOST: HTTP 404, or a JSON-RPC error for a caller that
// stays on its id, whose next call opens the session again.
func sessionLost(reason lease.Reason, stays bool) *refusal {
	l := lease.RefusalOf(&lease.LostError{Reason: reason})
	f := &refusal{status: http.StatusNotFound, code: rpcLost, message: l.Message + "; initialize a new session", data: refusalData{RefusalData: l.Data}}
	if stays {
		f.form, f.message = asError, l.Message+"; the next call opens a new one"
	}
	return f
}

// toldOnce is LEASE_LOST for a tools/call of a client that stays on its id: as a
// tool's result, since few clients show their users anything else.
func toldOnce(reason lease.Reason, lostNow bool) *refusal {
	f := sessionLost(reason, true)
	f.form = asResult
	next := "What the session had open is gone. The next call opens a new one."
	if !lostNow {
		next = "What the session had open is gone, and a new one is open: call again."
	}
	f.message = (&lease.LostError{Reason: reason}).Error() + ". " + next
	return f
}

// accepted is no refusal: the request has its end here.
func accepted(status int) *refusal { return &refusal{form: empty, status: status} }

// lostAtOpen is LEASE_LOST before the session was opened.
func lostAtOpen(reason lease.Reason) *refusal {
	f := sessionLost(reason, true)
	f.message = (&lease.LostError{Reason: reason}).Error() + " while the session was being opened; try again"
	return f
}
