package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
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

// refusal is an answer of the gateway itself.
type refusal struct {
	status     int // HTTP
	code       int // JSON-RPC
	message    string
	data       any
	retryAfter time.Duration
	allow      string
}

// data is error.data of the gateway's refusals.
type data struct {
	Code             string           `json:"code"`
	Reason           string           `json:"reason,omitempty"`
	Resource         string           `json:"resource,omitempty"`
	Level            definition.Level `json:"level,omitempty"`
	Cap              *int             `json:"cap,omitempty"`
	Count            *int             `json:"count,omitempty"`
	RetryAfterMs     *int64           `json:"retryAfterMs,omitempty"`
	OldestAgeSeconds *int64           `json:"oldestAgeSeconds,omitempty"`
	Permanent        bool             `json:"permanent,omitempty"`
	Limit            string           `json:"limit,omitempty"`
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
	answer := f.answer(body, env)
	h["Content-Length"] = []string{strconv.Itoa(len(answer))}
	w.WriteHeader(f.status)
	_, _ = w.Write(answer)
}

func (f *refusal) answer(body []byte, env *wire.Envelope) []byte {
	if env == nil || env.Batch && f.status == http.StatusBadRequest {
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

func unknownServer() *refusal {
	return &refusal{status: http.StatusNotFound, code: 404, message: "there is no such server in this project, or it is disabled"}
}

func unknownSession() *refusal {
	return &refusal{status: http.StatusNotFound, code: 404, data: data{Code: codeSession},
		message: "unknown session: it has ended, or it is not yours; initialize a new one"}
}

func limitReached(limit string, max int) *refusal {
	return &refusal{status: http.StatusOK, code: 429, retryAfter: 5 * time.Second,
		message: fmt.Sprintf("%s: the gateway's limit %s of %d is reached; try again in about 5 s", codeLimit, limit, max),
		data:    data{Code: codeLimit, Limit: limit, RetryAfterMs: ptr(int64(5000))}}
}

// shareTaken is LIMIT_REACHED for a caller that has its share of limits.perPod.
func (p *Proxy) shareTaken() *refusal {
	f := limitReached("limits.perPod", p.opt.Limits().PerPod)
	f.message = fmt.Sprintf("%s: your share of the gateway's limit limits.perPod of %d is in use; end streams and calls that you need no more, or try again in about 5 s",
		codeLimit, p.opt.Limits().PerPod)
	return f
}

func tooManyStreams() *refusal {
	return &refusal{status: http.StatusTooManyRequests, code: http.StatusTooManyRequests, retryAfter: 5 * time.Second,
		message: fmt.Sprintf("%s: this session has %d GET streams open already; a client needs one", codeLimit, maxStreams),
		data:    data{Code: codeLimit, RetryAfterMs: ptr(int64(5000))}}
}

func stopping() *refusal {
	return &refusal{status: http.StatusOK, code: 503, retryAfter: 2 * time.Second,
		message: codeDraining + ": this gateway process is stopping and takes no new session; try again in about 2 s",
		data:    data{Code: codeDraining, RetryAfterMs: ptr(int64(2000))}}
}

// upstreamDown is UPSTREAM_UNAVAILABLE; why continues "the server … cannot be used:".
func upstreamDown(server, why string) *refusal {
	return &refusal{status: http.StatusOK, code: 502, data: data{Code: codeUpstream},
		message: fmt.Sprintf("%s: the server %s cannot be used: %s", codeUpstream, server, why)}
}

// leaseRefusal is LEASE_BUSY or LEASE_UNAVAILABLE.
func leaseRefusal(err error) *refusal {
	var busy *lease.BusyError
	if errors.As(err, &busy) {
		d := data{Code: lease.CodeBusy, Resource: busy.Resource, Level: busy.Level, RetryAfterMs: ptr(busy.RetryAfter.Milliseconds())}
		if busy.Level != definition.Global { // its figures belong to no tenant
			d.Cap, d.Count, d.OldestAgeSeconds = ptr(int(busy.Cap)), ptr(busy.Count), ptr(busy.OldestSeconds())
		}
		return &refusal{status: http.StatusOK, code: 429, message: busy.Error(), data: d, retryAfter: max(busy.RetryAfter, time.Second)}
	}
	f := &refusal{status: http.StatusOK, code: 503}
	d := data{Code: lease.CodeUnavailable}
	why := "it is not known whether there is a free slot"
	var un *lease.UnavailableError
	if errors.As(err, &un) {
		why, d.Level, d.Permanent = un.Why, un.Level, un.Permanent
	}
	f.message = lease.CodeUnavailable + ": " + why
	if !d.Permanent {
		f.retryAfter = 5 * time.Second
		f.message = strings.TrimSuffix(f.message, "; try again") + "; try again in about 5 s"
		d.RetryAfterMs = ptr(int64(5000))
	}
	f.data = d
	return f
}

// lost is LEASE_LOST. status is 404, or 200 for callers that stay on their id.
func lost(status int, reason lease.Reason) *refusal {
	told := string(reason)
	switch reason {
	case lease.ReasonIdle, lease.ReasonPod, lease.ReasonRevoke:
	default:
		told = "unknown"
	}
	next := "; initialize a new session"
	if status == http.StatusOK {
		next = "; the next call opens a new one"
	}
	return &refusal{status: status, code: 410, message: (&lease.LostError{Reason: reason}).Error() + next,
		data: data{Code: lease.CodeLost, Reason: told}}
}

func ptr[T any](v T) *T { return &v }
