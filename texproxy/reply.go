package texproxy

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"syscall"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// refusal is what a client reads about a refused request, as data.
type refusal struct {
	Code             string           `json:"code"`
	Resource         string           `json:"resource,omitempty"`
	Level            definition.Level `json:"level,omitempty"`
	Cap              definition.Cap   `json:"cap,omitempty"`
	Count            int              `json:"count,omitempty"`
	RetryAfterMs     int64            `json:"retryAfterMs,omitempty"`
	OldestAgeSeconds int64            `json:"oldestAgeSeconds,omitempty"`
	Reason           string           `json:"reason,omitempty"`
	Permanent        bool             `json:"permanent,omitempty"`
}

// fill makes a fixed answer's text. In JSON every text is escaped for a string.
func fill(a config.TexAnswer, job, message string, data refusal) string {
	escape := func(s string) string {
		b, _ := json.Marshal(s) // a string always encodes
		return string(b[1 : len(b)-1])
	}
	object, _ := json.Marshal(data)
	if a.ContentType != "" && !strings.Contains(a.ContentType, "json") {
		escape = func(s string) string { return s }
	}
	return strings.NewReplacer(
		"{job}", escape(job),
		"{message}", escape(message),
		"{retryAfter}", strconv.FormatInt((data.RetryAfterMs+999)/1000, 10),
		"{data}", string(object),
	).Replace(a.JSON)
}

func write(w http.ResponseWriter, a config.TexAnswer, body string) {
	contentType := a.ContentType
	if contentType == "" {
		contentType = "application/json"
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(a.Status)
	_, _ = w.Write([]byte(body)) // a client that has gone has gone
}

// writeError answers in the gateway's own form: a sentence in detail.
func writeError(w http.ResponseWriter, status int, message string, data *refusal) {
	body, _ := json.Marshal(struct {
		Detail string   `json:"detail"`
		Error  *refusal `json:"error,omitempty"`
	}{message, data})
	write(w, config.TexAnswer{Status: status}, string(body))
}

func notFound(w http.ResponseWriter) {
	writeError(w, http.StatusNotFound, "there is no such job or path", nil)
}

// refuse tells why there is no slot: LEASE_BUSY in the form that the service's
// clients know, LEASE_UNAVAILABLE as 503.
func (p *Proxy) refuse(w http.ResponseWriter, s *service, job string, err error) {
	var busy *lease.BusyError
	if errors.As(err, &busy) {
		seconds := int64(math.Max(1, math.Ceil(busy.RetryAfter.Seconds())))
		data := refusal{Code: lease.CodeBusy, Resource: busy.Resource, Level: busy.Level, RetryAfterMs: max(busy.RetryAfter.Milliseconds(), 1)}
		if busy.Level != definition.Global { // what is global belongs to no tenant
			data.Cap, data.Count, data.OldestAgeSeconds = busy.Cap, busy.Count, busy.OldestSeconds()
		}
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
		write(w, s.Busy, fill(s.Busy, job, busy.Error(), data))
		return
	}
	data := refusal{Code: lease.CodeUnavailable}
	why := "the lease store cannot be reached; try again in a moment"
	var unavailable *lease.UnavailableError
	if errors.As(err, &unavailable) {
		if unavailable.Why != "" {
			why = unavailable.Why
		}
		data.Level, data.Permanent = unavailable.Level, unavailable.Permanent
	}
	if !data.Permanent {
		data.RetryAfterMs = 5000
		w.Header().Set("Retry-After", "5")
	}
	writeError(w, http.StatusServiceUnavailable, lease.CodeUnavailable+": "+why, &data)
}

// lost answers LEASE_LOST in the service's form of a failed job.
func (p *Proxy) lost(w http.ResponseWriter, s *service, job string, reason lease.Reason) {
	if reason == "" || reason == lease.ReasonClose {
		reason = "unknown"
	}
	err := lease.LostError{Reason: reason}
	write(w, s.Lost, fill(s.Lost, job, err.Error(), refusal{Code: lease.CodeLost, Reason: string(reason)}))
}

// upstreamFailed tells that the service did not answer.
func upstreamFailed(w http.ResponseWriter, err error) {
	if errors.Is(err, errSilent) {
		writeError(w, http.StatusGatewayTimeout, "UPSTREAM_UNAVAILABLE: the TeX service did not answer in time", &refusal{Code: "UPSTREAM_UNAVAILABLE"})
		return
	}
	writeError(w, http.StatusBadGateway, "UPSTREAM_UNAVAILABLE: the TeX service cannot be reached or broke off its answer", &refusal{Code: "UPSTREAM_UNAVAILABLE"})
}

// uploadFailed tells why an upload was not taken. A client that has gone gets
// nothing.
func uploadFailed(w http.ResponseWriter, err error, most, share int64) (logged bool) {
	switch {
	case errors.Is(err, errTooLarge):
		writeError(w, http.StatusRequestEntityTooLarge, "the upload is larger than the "+sizeText(most)+" that this service takes (maxUpload)", nil)
	case errors.Is(err, errTooMuch):
		writeError(w, http.StatusRequestEntityTooLarge, "the upload is larger than the "+sizeText(share)+" that the gateway has room for (a third of limits.spool)", nil)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		w.Header().Set("Retry-After", "5")
		writeError(w, http.StatusServiceUnavailable, "the gateway's disk has no room for uploads at the moment; try again later", nil)
		return true
	case errors.Is(err, errSpoolFull):
		w.Header().Set("Retry-After", "5")
		writeError(w, http.StatusServiceUnavailable, "too many uploads are waiting at the gateway (limits.spool); try again in a moment", nil)
	case errors.Is(err, errSlow):
		w.Header().Set("Connection", "close")
		writeError(w, http.StatusRequestTimeout, "the upload stood still for too long", nil)
	case errors.Is(err, errUpload):
		w.Header().Set("Connection", "close")
		writeError(w, http.StatusBadRequest, "the upload broke off", nil)
	default:
		writeError(w, http.StatusInternalServerError, "the upload could not be stored at the gateway", nil)
		return true
	}
	return false
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
