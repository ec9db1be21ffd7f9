package lease

import (
	"errors"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// tryAgain is when a client may ask again after a LEASE_UNAVAILABLE that waiting
// can end.
const tryAgain = 5 * time.Second

// Refusal is a BusyError, LostError or UnavailableError in the form that clients
// read (spec §3). The consumer puts it into its protocol's envelope.
type Refusal struct {
	// Message is one or more sentences that begin with the code.
	Message string
	// RetryAfter is when to ask again, at least a second; zero where waiting does
	// not help.
	RetryAfter time.Duration
	Data       RefusalData
}

// RefusalData is the machine-readable part of a Refusal, as it is encoded.
type RefusalData struct {
	Code             string           `json:"code"`
	Reason           string           `json:"reason,omitempty"` // of LEASE_LOST, or unknown
	Resource         string           `json:"resource,omitempty"`
	Level            definition.Level `json:"level,omitempty"`
	Cap              *int             `json:"cap,omitempty"` // not for the global level, whose figures belong to no tenant; so are Count and the age
	Count            *int             `json:"count,omitempty"`
	RetryAfterMs     *int64           `json:"retryAfterMs,omitempty"`
	OldestAgeSeconds *int64           `json:"oldestAgeSeconds,omitempty"`
	Permanent        bool             `json:"permanent,omitempty"` // waiting does not help
}

// RefusalOf puts an error of this package into the form for clients. Any other
// error is LEASE_UNAVAILABLE without a word about its cause, which may name what
// no client should read.
func RefusalOf(err error) Refusal {
	if busy, ok := errors.AsType[*BusyError](err); ok {
		return busy.refusal()
	}
	if lost, ok := errors.AsType[*LostError](err); ok {
		return Refusal{Message: lost.Error(), Data: RefusalData{Code: CodeLost, Reason: lost.Reason.forClients()}}
	}
	un, ok := errors.AsType[*UnavailableError](err)
	if !ok || un.Why == "" {
		un = &UnavailableError{Why: "it is not known whether there is a free slot"}
	}
	return un.refusal()
}

func (e *BusyError) refusal() Refusal {
	after := max(e.RetryAfter, time.Second)
	ms := after.Milliseconds()
	r := Refusal{Message: e.Error(), RetryAfter: after,
		Data: RefusalData{Code: CodeBusy, Resource: e.Resource, Level: e.Level, RetryAfterMs: &ms}}
	if e.Level != definition.Global {
		limit, count, oldest := int(e.Cap), e.Count, e.OldestSeconds()
		r.Data.Cap, r.Data.Count, r.Data.OldestAgeSeconds = &limit, &count, &oldest
	}
	return r
}

func (e *UnavailableError) refusal() Refusal {
	r := Refusal{Message: CodeUnavailable + ": " + e.Why,
		Data: RefusalData{Code: CodeUnavailable, Level: e.Level, Permanent: e.Permanent}}
	if !e.Permanent {
		ms := tryAgain.Milliseconds()
		r.RetryAfter, r.Data.RetryAfterMs = tryAgain, &ms
		r.Message = strings.TrimSuffix(r.Message, "; try again") + "; try again in about 5 s"
	}
	return r
}

// forClients is the reason as clients read it.
func (r Reason) forClients() string {
	switch r {
	case ReasonIdle, ReasonPod, ReasonRevoke, ReasonReplaced, ReasonShutdown, ReasonCrashed, ReasonMoved:
		return string(r)
	}
	return "unknown"
}
