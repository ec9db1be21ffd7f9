package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// Codes of the typed errors, as clients see them.
const (
	CodeBusy        = "LEASE_BUSY"
	CodeUnavailable = "LEASE_UNAVAILABLE"
	CodeLost        = "LEASE_LOST"
)

// ErrNotFound says that no holder matches, or none of the tenant that asked.
var ErrNotFound = errors.New("lease: no such holder")

// BusyError is LEASE_BUSY: a level was full at the failed increment (spec §3).
// For the global level Cap, Count and Oldest are zero: they belong to no tenant.
type BusyError struct {
	Resource   string
	Level      definition.Level
	Cap        definition.Cap
	Count      int
	Oldest     time.Duration // age of the oldest holder that books the level
	RetryAfter time.Duration
	Waited     time.Duration
}

// UnavailableError is LEASE_UNAVAILABLE: it is not known whether there is a
// slot, so there is no use (spec §3).
type UnavailableError struct {
	// Why is one sentence for the client. It names no address, tenant or user.
	Why string
	// Level is set where a capped level lacks its scope.
	Level definition.Level
	// Permanent says that waiting will not help.
	Permanent bool
	// Err is for the log.
	Err error
}

func (e *UnavailableError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", CodeUnavailable, e.Why, e.Err)
	}
	return CodeUnavailable + ": " + e.Why
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// LostError is LEASE_LOST: the holder is gone. Reason is "" where nobody knows.
type LostError struct{ Reason Reason }

func (e *LostError) Error() string {
	switch e.Reason {
	case ReasonIdle:
		return CodeLost + ": the lease was not used for longer than its TTL, so its slot was given back"
	case ReasonPod:
		return CodeLost + ": the gateway process that held the lease has ended"
	case ReasonRevoke:
		return CodeLost + ": an operator took the lease away"
	case ReasonReplaced:
		return CodeLost + ": a newer session of the same user has taken the place of this one"
	case ReasonShutdown:
		return CodeLost + ": the gateway was stopped and has closed the session"
	case ReasonCrashed:
		return CodeLost + ": the server has ended the session by itself"
	case ReasonMoved:
		return CodeLost + ": the server's document leads elsewhere now"
	}
	return CodeLost + ": the lease has ended"
}

// OldestSeconds is Oldest in whole seconds that have passed: the sentence and
// the data beside it say the same number.
func (e *BusyError) OldestSeconds() int64 { return int64(e.Oldest / time.Second) }

func (e *BusyError) Error() string {
	if e.Level == definition.Global {
		return fmt.Sprintf("%s: all slots of %s are in use; waited %.1f s, try again in about %.0f s",
			CodeBusy, e.Resource, e.Waited.Seconds(), e.RetryAfter.Seconds())
	}
	return fmt.Sprintf("%s: the %s limit of %s is reached: %d of %d in use, the oldest for %d s; waited %.1f s, try again in about %.0f s",
		CodeBusy, e.Level, e.Resource, e.Count, e.Cap, e.OldestSeconds(), e.Waited.Seconds(), e.RetryAfter.Seconds())
}
