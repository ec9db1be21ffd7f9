package texproxy

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// What the gateway itself refuses.
var (
	errNotFound        = errors.New("there is no such job or path")
	errNoService       = errors.New("there is no such TeX service")
	errTooManyRequests = errors.New("you have as many requests under way at the gateway as one caller may (a share of limits.perPod); try again in a moment")
	errTooManyNames    = errors.New("you have begun compiles under as many names as one user may within a week; go on under one of them")
)

// methodError is a path that another method would match.
type methodError struct{ allow []string }

func (e *methodError) Error() string {
	return "this path does not take the method; it takes " + strings.Join(e.allow, ", ")
}

// codeUpstream is the code where the service did not answer.
const codeUpstream = "UPSTREAM_UNAVAILABLE"

// retrySoon is when a client may try again after a refusal that passes.
const retrySoon = 5 * time.Second

// refuse tells the client why there is no answer of the service. This is the one
// place that does. What is left of an upload is read first, since a client that
// is still sending would never read its refusal.
func (q *request) refuse(err error) {
	if !errors.Is(err, errSlow) && !errors.Is(err, errUpload) {
		drainBody(q.w, q.r)
	}
	method, isMethod := errors.AsType[*methodError](err)
	switch {
	case isMethod:
		q.w.Header().Set("Allow", strings.Join(method.allow, ", "))
		q.say(http.StatusMethodNotAllowed, err.Error(), nil)
	case errors.Is(err, errNotFound), errors.Is(err, errNoService):
		q.say(http.StatusNotFound, err.Error(), nil)
	case errors.Is(err, errTooManyRequests):
		q.retry(retrySoon)
		q.say(http.StatusServiceUnavailable, err.Error(), nil)
	case errors.Is(err, errTooManyNames):
		q.say(http.StatusTooManyRequests, err.Error(), nil)
	case isLeaseError(err):
		q.refuseLease(err)
	case isUploadError(err):
		q.refuseUpload(err)
	default:
		q.upstreamFailed(err)
	}
}

func isLeaseError(err error) bool {
	_, isLost := lease.Lost(err)
	_, busy := errors.AsType[*lease.BusyError](err)
	_, unavailable := errors.AsType[*lease.UnavailableError](err)
	return isLost || busy || unavailable
}

// refuseLease tells LEASE_BUSY and LEASE_LOST in the form that the service's
// clients know, and LEASE_UNAVAILABLE as 503.
func (q *request) refuseLease(err error) {
	r := lease.RefusalOf(err)
	if r.RetryAfter > 0 {
		q.retry(r.RetryAfter)
	}
	switch r.Data.Code {
	case lease.CodeBusy:
		q.write(q.s.Busy, fill(q.s.Busy, q.m.job(), busyFor(q.s.Name, r), r))
	case lease.CodeLost:
		q.write(q.s.Lost, fill(q.s.Lost, q.m.job(), r.Message, r))
	default:
		if q.r.Context().Err() == nil {
			q.log().Warn("a compile was refused", "err", err)
		}
		q.say(http.StatusServiceUnavailable, r.Message, r.Data)
	}
}

// busyFor names the service that was asked, where its lease is of something else:
// several services may share one.
func busyFor(service string, r lease.Refusal) string {
	why, ok := strings.CutPrefix(r.Message, lease.CodeBusy+": ")
	if !ok || r.Data.Resource == service {
		return r.Message
	}
	return lease.CodeBusy + ": no slot for a compile of " + service + ": " + why
}

// upstreamFailed tells that the service did not answer.
func (q *request) upstreamFailed(err error) {
	if q.r.Context().Err() == nil {
		q.log().Warn("the TeX service failed", "route", q.m.path, "err", err)
	}
	status, what := http.StatusBadGateway, "the TeX service cannot be reached or broke off its answer"
	if errors.Is(err, errSilent) || errors.Is(err, errOverdue) {
		status, what = http.StatusGatewayTimeout, "the TeX service did not answer in time"
	}
	q.say(status, codeUpstream+": "+what, lease.RefusalData{Code: codeUpstream})
}

func isUploadError(err error) bool {
	_, is := errors.AsType[*spoolError](err)
	return is
}

// refuseUpload tells why an upload was not taken. A client that has gone gets
// nothing of it.
func (q *request) refuseUpload(err error) {
	status, message := uploadRefusal(err, q.s.MaxUpload, q.p.spool.mostOfOne())
	switch status {
	case http.StatusServiceUnavailable:
		q.retry(retrySoon)
	case http.StatusRequestTimeout, http.StatusBadRequest:
		q.w.Header().Set("Connection", "close")
	}
	if !errors.Is(err, errUpload) && (status == http.StatusInternalServerError || isFull(err)) {
		q.log().Error("an upload could not be stored", "err", err)
	}
	q.say(status, message, nil)
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func uploadRefusal(err error, most, share int64) (status int, message string) {
	switch {
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge, "the upload is larger than the " + sizeText(most) + " that this service takes (maxUpload)"
	case errors.Is(err, errTooMuch):
		return http.StatusRequestEntityTooLarge, "the upload is larger than the " + sizeText(share) + " that the gateway has room for (a third of limits.spool)"
	case isFull(err):
		return http.StatusServiceUnavailable, "the gateway's disk has no room for uploads at the moment; try again later"
	case errors.Is(err, errSpoolFull):
		return http.StatusServiceUnavailable, "too many uploads are waiting at the gateway (limits.spool); try again in a moment"
	case errors.Is(err, errSlow):
		return http.StatusRequestTimeout, "the upload stood still, or took too long"
	case errors.Is(err, errUpload):
		return http.StatusBadRequest, "the upload broke off"
	}
	return http.StatusInternalServerError, "the upload could not be stored at the gateway"
}

// retry says when to come again.
func (q *request) retry(after time.Duration) {
	q.w.Header().Set("Retry-After", strconv.FormatInt(seconds(after), 10))
}

func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// say answers in the gateway's own form: a sentence in detail. Data may be nil.
func (q *request) say(status int, message string, data any) {
	body, _ := json.Marshal(struct {
		Detail string `json:"detail"`
		Error  any    `json:"error,omitempty"`
	}{message, data}) // texts and numbers always encode
	q.write(tex.Answer{Status: status}, string(body))
}

// fill makes a fixed answer's text. In JSON every text is escaped for a string.
func fill(a tex.Answer, job, message string, r lease.Refusal) string {
	escape := func(s string) string {
		b, _ := json.Marshal(s) // a string always encodes
		return string(b[1 : len(b)-1])
	}
	object, _ := json.Marshal(r.Data)
	if a.ContentType != "" && !strings.Contains(a.ContentType, "json") {
		escape = func(s string) string { return s }
	}
	return strings.NewReplacer(
		"{job}", escape(job),
		"{message}", escape(message),
		"{retryAfter}", strconv.FormatInt(seconds(r.RetryAfter), 10),
		"{data}", string(object),
	).Replace(a.JSON)
}

func (q *request) write(a tex.Answer, body string) {
	contentType := a.ContentType
	if contentType == "" {
		contentType = "application/json"
	}
	h := q.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	// It goes out when this returns, and no later than that.
	_ = http.NewResponseController(q.w).SetWriteDeadline(time.Now().Add(uploadSilence))
	q.w.WriteHeader(a.Status)
	_, _ = q.w.Write([]byte(body)) // a client that has gone has gone
}

// sizeText says a size as gateway.yaml does, in the largest unit that fits.
func sizeText(n int64) string {
	switch {
	case n >= 1<<20:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	case n >= 1<<10:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
