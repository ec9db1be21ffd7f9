package tex

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The defaults of a service.
const (
	DefaultUpload  = 50 << 20
	DefaultHold    = 600 * time.Second
	DefaultTimeout = 60 * time.Second
	DefaultEvery   = 10 * time.Second
	DefaultMax     = 300 * time.Second
)

// plainAnswer is what clients of a service without a preset see: a sentence,
// and an object for programs.
const plainAnswer = `{"detail":"{message}","error":{data}}`

var getHead = []string{http.MethodGet, http.MethodHead}

// presets describes services as their own sources do.
var presets = map[string]func() Service{"rbehzadan": rbehzadan}

func rbehzadan() Service {
	failed := []string{"failed", "error"}
	return Service{
		Mode: Job,
		Submit: []Route{{
			Methods: []string{http.MethodPost}, Path: "/tex2pdf",
			Accepted: []int{200, 201, 202, 303},
			JobID:    []Pick{{JSON: "/job_id"}, {Header: "Location", Regex: regexp.MustCompile(`([^/?#]+)$`)}},
			Terminal: []End{{JSON: "/status", In: failed, Outcome: Error}},
		}},
		Poll: Route{
			Methods: getHead, Path: "/tex2pdf/status/{job}",
			Terminal: []End{
				{JSON: "/status", In: []string{"completed", "done"}, Outcome: OK},
				{JSON: "/status", In: failed, Outcome: Error},
				{Status: []int{404, 410}, Outcome: Gone},
			},
		},
		Result: Route{Methods: getHead, Path: "/tex2pdf/download/{job}"},
		// Its clients show the text of detail to a person.
		Busy: Answer{Status: http.StatusTooManyRequests, JSON: plainAnswer},
		Lost: Answer{Status: http.StatusOK, JSON: `{"job_id":"{job}","status":"failed","message":"{message}","error":"{message}"}`},
	}
}

// Presets lists the presets' names.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// Complete returns s with its preset's values and then the defaults in every
// field that s leaves out. A *WrongError names what is unknown or impossible.
func (s Service) Complete() (Service, error) {
	if s.Preset != "" {
		preset, ok := presets[s.Preset]
		if !ok {
			return s, wrong("preset", "%q is not one of %s; how other services are described stands in examples/tex", s.Preset, strings.Join(Presets(), ", "))
		}
		s.over(preset())
	}
	s.defaults()
	return s, s.validate()
}

// over fills what s leaves out with what its preset says. A list of submits is
// taken as it is: it would be open which of its routes the preset's completes.
func (s *Service) over(preset Service) {
	s.Mode = firstSet(s.Mode, preset.Mode)
	switch len(s.Submit) {
	case 0:
		s.Submit = preset.Submit
	case 1:
		s.Submit = []Route{s.Submit[0].over(preset.Submit[0])}
	}
	s.Poll = s.Poll.over(preset.Poll)
	s.Result = s.Result.over(preset.Result)
	s.Cancel = s.Cancel.over(preset.Cancel)
	s.Other = firstFilled(s.Other, preset.Other)
	s.Owned = firstFilled(s.Owned, preset.Owned)
	if s.Busy.Status == 0 {
		s.Busy = preset.Busy
	}
	if s.Lost.Status == 0 {
		s.Lost = preset.Lost
	}
}

func (r Route) over(preset Route) Route {
	return Route{
		Path:     firstSet(r.Path, preset.Path),
		Methods:  firstFilled(r.Methods, preset.Methods),
		Upstream: firstSet(r.Upstream, preset.Upstream),
		Accepted: firstFilled(r.Accepted, preset.Accepted),
		JobID:    firstFilled(r.JobID, preset.JobID),
		Terminal: firstFilled(r.Terminal, preset.Terminal),
	}
}

func (s *Service) defaults() {
	if s.Busy.Status == 0 {
		s.Busy = Answer{Status: http.StatusTooManyRequests, JSON: plainAnswer}
	}
	if s.Lost.Status == 0 {
		s.Lost = Answer{Status: http.StatusGone, JSON: plainAnswer}
	}
	s.Abandoned.Mode = firstSet(s.Abandoned.Mode, Watch)
	s.Abandoned.Every = firstSet(s.Abandoned.Every, DefaultEvery)
	s.Abandoned.Max = firstSet(s.Abandoned.Max, DefaultMax)
	s.MaxUpload = firstSet(s.MaxUpload, DefaultUpload)
	s.HoldMax = firstSet(s.HoldMax, DefaultHold)
	s.Unmatched = firstSet(s.Unmatched, Reject)
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
		if s.Mode == Sync {
			s.Timeout = s.HoldMax // it is silent while it compiles
		}
	}
	for i := range s.Submit {
		r := &s.Submit[i]
		r.Accepted = firstFilled(r.Accepted, []int{200, 201, 202, 303})
		r.Methods = firstFilled(r.Methods, []string{http.MethodPost})
	}
	s.Poll.Methods = firstFilled(s.Poll.Methods, getHead)
	s.Result.Methods = firstFilled(s.Result.Methods, getHead)
	s.Cancel.Methods = firstFilled(s.Cancel.Methods, []string{http.MethodPost})
}

func firstSet[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

func firstFilled[T any](a, b []T) []T {
	if len(a) > 0 {
		return a
	}
	return b
}

// WrongError says what is wrong with a service's description; Key is relative to
// the service.
type WrongError struct{ Key, What string }

func (e *WrongError) Error() string { return e.Key + ": " + e.What }

func wrong(key, format string, args ...any) error {
	return &WrongError{key, fmt.Sprintf(format, args...)}
}
