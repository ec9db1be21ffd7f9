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
	b, err := json.Marshal(rpcError{JSONRPC: "2.0", ID: id, Error: rpcErrorBody{f.code, f.message, f.data}})
	if err != nil {
		panic(err) // an id is valid JSON and data is one of ours
	}
	return b
}

// write answers with the refusal: one error for the request, or one for each
// request of a batch.
func (f *refusal) write(w http.ResponseWriter, body []byte, env *wire.Envelope) {
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
		return f.render(requestID(body, env.One()))
	}
	out := []byte{'['}
	for i := range env.Messages {
		if m := &env.Messages[i]; m.Request() {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, f.render(m.ID.Of(body))...)
		}
	}
	if len(out) == 1 {
		return f.render(nil)
	}
	return append(out, ']')
}

// requestID is the id that an error answers: a request's, else null.
func requestID(body []byte, m *wire.Message) []byte {
	if m.Request() {
		return m.ID.Of(body)
	}
	return nil
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
	return &refusal{form: asError, status: http.StatusTooManyRequests, code: http.StatusTooManyRequests, retryAfter: limitRetry,
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

func tooManyStreams() *refusal {
	return &refusal{status: http.StatusTooManyRequests, code: http.StatusTooManyRequests, retryAfter: limitRetry,
		message: fmt.Sprintf("%s: this session has %d GET streams open already; a client needs one", codeLimit, maxStreams),
		data:    limitData("", limitRetry)}
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
	if l.Data.Code == lease.CodeBusy {
		f.status = http.StatusTooManyRequests
	}
	f.code = f.status
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

// lostAtOpen is LEASE_LOST before the session was opened.
func lostAtOpen(reason lease.Reason) *refusal {
	f := sessionLost(reason, true)
	f.message = (&lease.LostError{Reason: reason}).Error() + " while the session was being opened; try again"
	return f
}
