package tex

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

func (s *Service) validate() error {
	for _, check := range []func() error{s.checkWords, s.checkTimes, s.checkRoutes, s.checkJobs, s.checkAnswers} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

const baseForm = "want an http or https base URL without user, query and fragment"

func isBase(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

func (s *Service) checkWords() error {
	if !isBase(s.Upstream) {
		return wrong("upstream", baseForm)
	}
	switch {
	case s.Mode != Job && s.Mode != Sync:
		return wrong("mode", "%q is neither job nor sync", s.Mode)
	case s.Unmatched != Reject && s.Unmatched != PassThrough:
		return wrong("unmatched", "%q is neither reject nor passThrough", s.Unmatched)
	case s.Abandoned.Mode != Watch && s.Abandoned.Mode != Expire:
		return wrong("abandoned.mode", "%q is neither watch nor expire", s.Abandoned.Mode)
	case s.Lease != "" && s.Lease != NoLease && !definition.ValidName(s.Lease):
		return wrong("lease", "a lease name begins with a letter or digit and has letters, digits, _ and - after it, at most 64; none is no lease")
	case s.Optional && (s.Lease == "" || s.Lease == NoLease):
		return wrong("optional", "it says that a setting may take off the lease that stands here, and none does; set lease, or leave optional out")
	}
	return nil
}

func (s *Service) checkTimes() error {
	for _, t := range []struct {
		key string
		d   time.Duration
	}{{"abandoned.every", s.Abandoned.Every}, {"abandoned.max", s.Abandoned.Max}, {"hold.max", s.HoldMax}, {"timeout", s.Timeout}} {
		if t.d <= 0 {
			return wrong(t.key, "is not longer than nothing")
		}
	}
	if s.MaxUpload < 0 {
		return wrong("maxUpload", "is negative")
	}
	return nil
}

// SubmitKey is how the file calls a submit route.
func (s *Service) SubmitKey(i int) string {
	if len(s.Submit) == 1 {
		return "submit"
	}
	return fmt.Sprintf("submit[%d]", i)
}

func (s *Service) checkRoutes() error {
	if len(s.Submit) == 0 {
		return wrong("submit", "is missing: nothing could be compiled")
	}
	for i, r := range s.Submit {
		if r.Path == "" {
			return wrong(s.SubmitKey(i)+".match.path", "is missing: nothing could be compiled")
		}
		if err := r.validate(s.SubmitKey(i)); err != nil {
			return err
		}
	}
	for i, r := range s.Other {
		key := fmt.Sprintf("other[%d]", i)
		if r.Path == "" || len(r.Methods) == 0 {
			return wrong(key+".match", "needs methods and path")
		}
		if err := r.validate(key); err != nil {
			return err
		}
	}
	for _, r := range s.single() {
		if err := r.route.validate(r.key); err != nil {
			return err
		}
	}
	return nil
}

type keyed struct {
	key   string
	route Route
}

// single are the routes of which a service has one at most.
func (s *Service) single() []keyed {
	return []keyed{{"poll", s.Poll}, {"result", s.Result}, {"cancel", s.Cancel}}
}

// checkJobs sees to it that a job can be recognised and its end be seen.
func (s *Service) checkJobs() error {
	if s.Mode != Job {
		return nil
	}
	if s.Poll.Path == "" || len(s.Poll.Terminal) == 0 {
		return wrong("poll", "a service in job mode needs a poll route with terminal conditions: a lease would never be given back")
	}
	for i, r := range s.Submit {
		if len(r.JobID) == 0 {
			return wrong(s.SubmitKey(i)+".jobId", "is missing: no job could be recognised")
		}
	}
	for _, r := range s.single() {
		if r.route.Path == "" {
			continue
		}
		if p, err := ParsePath(r.route.Path); err != nil || !p.Has("job") {
			return wrong(r.key+".match.path", "has no {job}")
		}
	}
	return nil
}

func (s *Service) checkAnswers() error {
	for _, a := range []struct {
		key    string
		answer Answer
	}{{"busy", s.Busy}, {"lost", s.Lost}} {
		if a.answer.Status < 200 || a.answer.Status > 599 {
			return wrong(a.key+".status", "%d is not an HTTP status", a.answer.Status)
		}
	}
	return nil
}

func (r Route) validate(key string) error {
	if r.Path == "" {
		return nil
	}
	if _, err := ParsePath(r.Path); err != nil {
		return wrong(key+".match.path", "%s", err.Error())
	}
	if r.Upstream != "" && !isBase(r.Upstream) {
		return wrong(key+".upstream", baseForm)
	}
	for _, m := range r.Methods {
		if m == "" || strings.ContainsFunc(m, func(c rune) bool { return c < 'A' || c > 'Z' }) || m == http.MethodConnect {
			return wrong(key+".match.methods", "%q is not a method", m)
		}
	}
	for i, p := range r.JobID {
		if err := p.validate(fmt.Sprintf("%s.jobId[%d]", key, i)); err != nil {
			return err
		}
	}
	for i, e := range r.Terminal {
		if err := e.validate(); err != nil {
			return wrong(fmt.Sprintf("%s.terminal[%d]", key, i), "%s", err.Error())
		}
	}
	return nil
}

func (p Pick) validate(key string) error {
	switch {
	case (p.JSON == "") == (p.Header == ""):
		return wrong(key, "needs either json or header")
	case p.JSON != "" && !strings.HasPrefix(p.JSON, "/"):
		return wrong(key+".json", "is not a JSON pointer: it begins with /")
	case slices.Contains(strings.Split(p.JSON, "/"), "*"):
		return wrong(key+".json", "a job has one id, and * stands for every element of an array")
	case p.Regex != nil && p.Regex.NumSubexp() != 1:
		return wrong(key+".regex", "needs exactly one group")
	}
	return nil
}

func (e End) validate() error {
	switch {
	case e.JSON == "" && e.Header == "" && len(e.Status) == 0:
		return errors.New("needs json, header or status")
	case e.JSON != "" && !strings.HasPrefix(e.JSON, "/"):
		return errors.New("json is not a JSON pointer: it begins with /")
	case e.JSON != "" && len(e.In) == 0:
		return errors.New("json needs in")
	case e.JSON == "" && len(e.In) > 0:
		return errors.New("in needs json")
	case e.Regex != nil && e.Header == "":
		return errors.New("regex needs header")
	case e.Outcome != OK && e.Outcome != Error && e.Outcome != Gone:
		return fmt.Errorf("outcome %q is not ok, error or gone", e.Outcome)
	}
	return nil
}
