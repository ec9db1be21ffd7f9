package config

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The defaults of a TeX service.
const (
	DefaultTexUpload  = 50 << 20
	DefaultTexHold    = 600 * time.Second
	DefaultTexTimeout = 60 * time.Second
	DefaultTexEvery   = 10 * time.Second
	DefaultTexMax     = 300 * time.Second
)

// The forms that clients of a service without a preset see.
const (
	texBusy = `{"detail":"{message}","error":{data}}`
	texLost = `{"detail":"{message}","error":{data}}`
)

var getHead = []string{http.MethodGet, http.MethodHead}

func pdfContent() TexEnd {
	return TexEnd{Header: "Content-Type", Regex: regexp.MustCompile(`^(application/(pdf|zip|x-zip-compressed)|image/)`), Outcome: "ok"}
}

// texPresets describes services as their own sources do.
var texPresets = map[string]func() TexService{
	"rbehzadan": func() TexService {
		failed := []string{"failed", "error"}
		return TexService{
			Mode: "job",
			Submit: TexRoute{
				Methods: []string{http.MethodPost}, Path: "/tex2pdf",
				Accepted: []int{200, 201, 202, 303},
				JobID:    []TexPick{{JSON: "/job_id"}, {Header: "Location", Regex: regexp.MustCompile(`([^/?#]+)$`)}},
				Terminal: []TexEnd{{JSON: "/status", In: failed, Outcome: "error"}},
			},
			Poll: TexRoute{
				Methods: getHead, Path: "/tex2pdf/status/{job}",
				Terminal: []TexEnd{
					{JSON: "/status", In: []string{"completed", "done"}, Outcome: "ok"},
					{JSON: "/status", In: failed, Outcome: "error"},
					{Status: []int{404, 410}, Outcome: "gone"},
				},
			},
			Result: TexRoute{Methods: getHead, Path: "/tex2pdf/download/{job}"},
			// Its clients show the text of detail to a person.
			Busy: TexAnswer{Status: 429, JSON: texBusy},
			Lost: TexAnswer{Status: 200, JSON: `{"job_id":"{job}","status":"failed","message":"{message}","error":"{message}"}`},
		}
	},
	"clsi": func() TexService {
		return TexService{
			Mode:   "sync",
			Submit: TexRoute{Methods: []string{http.MethodPost}, Path: "/project/{p}[/user/{u}]/compile"},
			Cancel: TexRoute{Methods: []string{http.MethodPost}, Path: "/project/{p}[/user/{u}]/compile/stop"},
			Result: TexRoute{Methods: getHead, Path: "/project/{p}[/user/{u}]/build/{build}/output/{file...}"},
			Other: []TexRoute{
				{Methods: getHead, Path: "/project/{p}[/user/{u}]/output/{file...}"},
				{Methods: getHead, Path: "/project/{p}[/user/{u}]/content/{hash}"},
				{Methods: getHead, Path: "/project/{p}[/user/{u}]/sync/{what}"},
				{Methods: getHead, Path: "/project/{p}[/user/{u}]/wordcount"},
				{Methods: []string{http.MethodGet, http.MethodPost}, Path: "/project/{p}/status"},
				{Methods: []string{http.MethodDelete}, Path: "/project/{p}[/user/{u}]"},
			},
			Owned: []string{"p"},
			Busy:  TexAnswer{Status: 503, JSON: `{"compile":{"status":"unavailable","error":"{message}","outputFiles":[]},"error":{data}}`},
			Lost:  TexAnswer{Status: 200, JSON: `{"compile":{"status":"terminated","error":"{message}","outputFiles":[]}}`},
		}
	},
	"latex-on-http": func() TexService {
		return TexService{
			Mode:   "sync",
			Submit: TexRoute{Methods: []string{http.MethodPost, http.MethodGet}, Path: "/builds/sync"},
			Other:  []TexRoute{{Methods: getHead, Path: "/fonts"}, {Methods: getHead, Path: "/packages"}},
			Busy:   TexAnswer{Status: 429, JSON: texBusy},
			Lost:   TexAnswer{Status: 400, JSON: `{"error":"COMPILATION_ERROR","logs":"{message}"}`},
		}
	},
	"latex-online": func() TexService {
		return TexService{
			Mode: "sync",
			// A GET compiles; a HEAD would too, so it is not taken.
			Submit: TexRoute{Methods: []string{http.MethodGet, http.MethodPost}, Path: "/{action}"},
			Busy:   TexAnswer{Status: 429, JSON: "{message}\n", ContentType: "text/plain; charset=utf-8"},
			Lost:   TexAnswer{Status: 400, JSON: "{message}\n", ContentType: "text/plain; charset=utf-8"},
		}
	},
	"latexcgi": func() TexService {
		return TexService{
			Mode:   "sync",
			Submit: TexRoute{Methods: []string{http.MethodPost}, Path: "/cgi-bin/{script}"},
			Result: TexRoute{Methods: getHead, Path: "/latexcgi/{file...}"},
			Other:  []TexRoute{{Methods: getHead, Path: "/pdfjs/{asset...}"}},
			// Its results have names that can be guessed.
			Owned: []string{"file"},
			Busy:  TexAnswer{Status: 429, JSON: "{message}\n", ContentType: "text/plain; charset=utf-8"},
			Lost:  TexAnswer{Status: 200, JSON: "{message}\n", ContentType: "text/plain; charset=utf-8"},
		}
	},
	"texd": func() TexService {
		return TexService{
			Mode:   "sync",
			Submit: TexRoute{Methods: []string{http.MethodPost}, Path: "/render"},
			Other:  []TexRoute{{Methods: getHead, Path: "/status"}},
			Busy:   TexAnswer{Status: 422, JSON: `{"error":"{message}","category":"queue"}`},
			Lost:   TexAnswer{Status: 422, JSON: `{"error":"{message}","category":"compilation"}`},
		}
	},
	"arxiv": func() TexService {
		ends := func() []TexEnd {
			return []TexEnd{
				{JSON: "/status", In: []string{"completed"}, Outcome: "ok"},
				{JSON: "/status", In: []string{"failed"}, Outcome: "error"},
				{Status: []int{404, 410}, Outcome: "gone"},
			}
		}
		return TexService{
			Mode: "job",
			// A job is its source, checksum and format.
			Submit: TexRoute{
				Methods: []string{http.MethodPost}, Path: "/",
				Accepted: []int{200, 202, 302, 303},
				JobID:    []TexPick{{Header: "Location", Regex: regexp.MustCompile(`([^/?#]+/[^/?#]+/[^/?#]+)$`)}},
			},
			Poll:   TexRoute{Methods: getHead, Path: "/{job:3}", Terminal: ends()},
			Result: TexRoute{Methods: getHead, Path: "/{job:3}/product"},
			Other: []TexRoute{
				{Methods: getHead, Path: "/{job:3}/log"},
				{Methods: getHead, Path: "/task/{job:3}", Terminal: ends()},
				{Methods: getHead, Path: "/status"},
			},
			Busy: TexAnswer{Status: 429, JSON: `{"reason":"{message}"}`},
			Lost: TexAnswer{Status: 200, JSON: `{"status":"failed","reason":"{message}"}`},
		}
	},
	"typst": func() TexService {
		return TexService{
			Mode: "job",
			// An answer without a batch is a compile that has ended.
			Submit: TexRoute{
				Methods: []string{http.MethodPost}, Path: "/{action...}",
				Accepted: []int{200, 201, 202},
				JobID:    []TexPick{{JSON: "/batchId"}},
				Terminal: []TexEnd{pdfContent(), {JSON: "/batchId", Absent: true, Outcome: "ok"}},
			},
			Poll: TexRoute{
				Methods: getHead, Path: "/status/{job}",
				Terminal: []TexEnd{
					{JSON: "/status", In: []string{"completed", "done"}, Outcome: "ok"},
					{JSON: "/status", In: []string{"failed", "error"}, Outcome: "error"},
					{Status: []int{404, 410}, Outcome: "gone"},
				},
			},
			Result: TexRoute{Methods: getHead, Path: "/download/{job}[/{file}]"},
			Busy:   TexAnswer{Status: 429, JSON: texBusy},
			Lost:   TexAnswer{Status: 200, JSON: `{"batchId":"{job}","status":"failed","error":"{message}"}`},
		}
	},
}

// TexPresets lists the presets' names.
func TexPresets() []string { return slices.Sorted(maps.Keys(texPresets)) }

// Complete returns s with its preset's values and then the defaults in every
// field that s leaves out. A *TexError names what is unknown or impossible.
func (s TexService) Complete() (TexService, error) {
	preset := TexService{}
	if s.Preset != "" {
		known, ok := texPresets[s.Preset]
		if !ok {
			return s, &TexError{Key: "preset", What: fmt.Sprintf("%q is not one of %s", s.Preset, strings.Join(TexPresets(), ", "))}
		}
		preset = known()
	}
	s.Mode = firstSet(s.Mode, preset.Mode)
	for _, r := range []struct{ mine, theirs *TexRoute }{
		{&s.Submit, &preset.Submit}, {&s.Poll, &preset.Poll}, {&s.Result, &preset.Result}, {&s.Cancel, &preset.Cancel},
	} {
		r.mine.Path = firstSet(r.mine.Path, r.theirs.Path)
		r.mine.Methods = firstFilled(r.mine.Methods, r.theirs.Methods)
		r.mine.Accepted = firstFilled(r.mine.Accepted, r.theirs.Accepted)
		r.mine.JobID = firstFilled(r.mine.JobID, r.theirs.JobID)
		r.mine.Terminal = firstFilled(r.mine.Terminal, r.theirs.Terminal)
	}
	s.Other = firstFilled(s.Other, preset.Other)
	s.Owned = firstFilled(s.Owned, preset.Owned)
	if s.Busy.Status == 0 {
		s.Busy = preset.Busy
	}
	if s.Lost.Status == 0 {
		s.Lost = preset.Lost
	}
	if s.Busy.Status == 0 {
		s.Busy = TexAnswer{Status: http.StatusTooManyRequests, JSON: texBusy}
	}
	if s.Lost.Status == 0 {
		s.Lost = TexAnswer{Status: http.StatusGone, JSON: texLost}
	}
	s.Abandoned.Mode = firstSet(s.Abandoned.Mode, "watch")
	s.Abandoned.Every = firstSet(s.Abandoned.Every, DefaultTexEvery)
	s.Abandoned.Max = firstSet(s.Abandoned.Max, DefaultTexMax)
	s.MaxUpload = firstSet(s.MaxUpload, DefaultTexUpload)
	s.HoldMax = firstSet(s.HoldMax, DefaultTexHold)
	s.Unmatched = firstSet(s.Unmatched, "reject")
	if s.Timeout == 0 {
		s.Timeout = DefaultTexTimeout
		if s.Mode == "sync" || s.Preset == "typst" {
			s.Timeout = s.HoldMax // it is silent while it compiles
		}
	}
	if len(s.Submit.Accepted) == 0 {
		s.Submit.Accepted = []int{200, 201, 202, 303}
	}
	if len(s.Submit.Methods) == 0 {
		s.Submit.Methods = []string{http.MethodPost}
	}
	for _, r := range []*TexRoute{&s.Poll, &s.Result} {
		if len(r.Methods) == 0 {
			r.Methods = getHead
		}
	}
	if len(s.Cancel.Methods) == 0 {
		s.Cancel.Methods = []string{http.MethodPost}
	}
	return s, s.validate()
}

// TexError says what is wrong with a service's description; Key is relative to
// the service.
type TexError struct{ Key, What string }

func (e *TexError) Error() string { return e.Key + ": " + e.What }

func (s *TexService) validate() error {
	if u, err := url.Parse(s.Upstream); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return &TexError{"upstream", "want an http or https base URL without user, query and fragment"}
	}
	if s.Mode != "job" && s.Mode != "sync" {
		return &TexError{"mode", fmt.Sprintf("%q is neither job nor sync", s.Mode)}
	}
	if s.Unmatched != "reject" && s.Unmatched != "passThrough" {
		return &TexError{"unmatched", fmt.Sprintf("%q is neither reject nor passThrough", s.Unmatched)}
	}
	if s.Abandoned.Mode != "watch" && s.Abandoned.Mode != "expire" {
		return &TexError{"abandoned.mode", fmt.Sprintf("%q is neither watch nor expire", s.Abandoned.Mode)}
	}
	for key, d := range map[string]time.Duration{"abandoned.every": s.Abandoned.Every, "abandoned.max": s.Abandoned.Max,
		"hold.max": s.HoldMax, "timeout": s.Timeout} {
		if d <= 0 {
			return &TexError{key, "is not longer than nothing"}
		}
	}
	if s.MaxUpload < 0 {
		return &TexError{"maxUpload", "is negative"}
	}
	if s.Submit.Path == "" {
		return &TexError{"submit.match.path", "is missing: nothing could be compiled"}
	}
	if s.Mode == "job" {
		if s.Poll.Path == "" || len(s.Poll.Terminal) == 0 {
			return &TexError{"poll", "a service in job mode needs a poll route with terminal conditions: a lease would never be given back"}
		}
		if len(s.Submit.JobID) == 0 {
			return &TexError{"submit.jobId", "is missing: no job could be recognised"}
		}
	}
	routes := map[string]TexRoute{"submit": s.Submit, "poll": s.Poll, "result": s.Result, "cancel": s.Cancel}
	for i, r := range s.Other {
		if r.Path == "" || len(r.Methods) == 0 {
			return &TexError{fmt.Sprintf("other[%d].match", i), "needs methods and path"}
		}
		routes[fmt.Sprintf("other[%d]", i)] = r
	}
	for _, key := range slices.Sorted(maps.Keys(routes)) {
		if err := routes[key].validate(key); err != nil {
			return err
		}
	}
	if s.Mode == "job" {
		for key, r := range map[string]TexRoute{"poll": s.Poll, "result": s.Result, "cancel": s.Cancel} {
			if r.Path == "" {
				continue
			}
			if p, err := ParseTexPath(r.Path); err != nil || !p.Has("job") {
				return &TexError{key + ".match.path", "has no {job}"}
			}
		}
	}
	for key, a := range map[string]TexAnswer{"busy": s.Busy, "lost": s.Lost} {
		if a.Status < 200 || a.Status > 599 {
			return &TexError{key + ".status", fmt.Sprintf("%d is not an HTTP status", a.Status)}
		}
	}
	return nil
}

func (r TexRoute) validate(key string) error {
	if r.Path == "" {
		return nil
	}
	if _, err := ParseTexPath(r.Path); err != nil {
		return &TexError{key + ".match.path", err.Error()}
	}
	for _, m := range r.Methods {
		if m == "" || m != strings.ToUpper(m) || strings.ContainsFunc(m, func(c rune) bool { return c < 'A' || c > 'Z' }) || m == http.MethodConnect {
			return &TexError{key + ".match.methods", fmt.Sprintf("%q is not a method", m)}
		}
	}
	for i, p := range r.JobID {
		switch {
		case (p.JSON == "") == (p.Header == ""):
			return &TexError{fmt.Sprintf("%s.jobId[%d]", key, i), "needs either json or header"}
		case p.JSON != "" && !strings.HasPrefix(p.JSON, "/"):
			return &TexError{fmt.Sprintf("%s.jobId[%d].json", key, i), "is not a JSON pointer: it begins with /"}
		case p.Regex != nil && p.Regex.NumSubexp() != 1:
			return &TexError{fmt.Sprintf("%s.jobId[%d].regex", key, i), "needs exactly one group"}
		}
	}
	for i, e := range r.Terminal {
		if err := e.validate(); err != nil {
			return &TexError{fmt.Sprintf("%s.terminal[%d]", key, i), err.Error()}
		}
	}
	return nil
}

func (e TexEnd) validate() error {
	switch {
	case e.JSON == "" && e.Header == "" && len(e.Status) == 0:
		return errors.New("needs json, header or status")
	case e.JSON != "" && !strings.HasPrefix(e.JSON, "/"):
		return errors.New("json is not a JSON pointer: it begins with /")
	case e.JSON != "" && !e.Absent && len(e.In) == 0:
		return errors.New("json needs in")
	case e.JSON == "" && (len(e.In) > 0 || e.Absent):
		return errors.New("in and absent need json")
	case e.Regex != nil && e.Header == "":
		return errors.New("regex needs header")
	case e.Outcome != "ok" && e.Outcome != "error" && e.Outcome != "gone":
		return fmt.Errorf("outcome %q is not ok, error or gone", e.Outcome)
	}
	return nil
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
