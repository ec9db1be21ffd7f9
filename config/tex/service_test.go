package tex

import "testing"

func TestPresetsAreComplete(t *testing.T) {
	for _, name := range Presets() {
		s, err := Service{Name: "x", Preset: name, Upstream: "http://tex:8000"}.Complete()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.MaxUpload != DefaultUpload || s.HoldMax != DefaultHold || s.Timeout <= 0 {
			t.Errorf("%s: limits are %d, %v, %v", name, s.MaxUpload, s.HoldMax, s.Timeout)
		}
	}
	s, err := Service{Preset: "rbehzadan", Upstream: "http://x", MaxUpload: 7, Busy: Answer{Status: 503, JSON: "{}"}}.Complete()
	if err != nil || s.MaxUpload != 7 || s.Busy.Status != 503 || s.Poll.Path != "/tex2pdf/status/{job}" {
		t.Errorf("a preset's value won over the description's: %+v, %v", s, err)
	}
}

func TestAServiceThatCannotBe(t *testing.T) {
	ok := Service{Preset: "rbehzadan", Upstream: "http://x"}
	for name, c := range map[string]struct {
		change func(*Service)
		key    string
	}{
		"an unknown preset":        {func(s *Service) { s.Preset = "tex" }, "preset"},
		"no upstream":              {func(s *Service) { s.Upstream = "" }, "upstream"},
		"a password in the URL":    {func(s *Service) { s.Upstream = "http://a:b@x" }, "upstream"},
		"an unknown mode":          {func(s *Service) { s.Mode = "both" }, "mode"},
		"a job without an end":     {func(s *Service) { s.Preset, s.Mode, s.Submit = "", Job, []Route{{Path: "/x"}} }, "poll"},
		"a bad path":               {func(s *Service) { s.Result.Path = "/{" }, "result.match.path"},
		"a result without its job": {func(s *Service) { s.Result.Path = "/x" }, "result.match.path"},
		"a bad method":             {func(s *Service) { s.Poll.Methods = []string{"get"} }, "poll.match.methods"},
		"a pick of nothing":        {func(s *Service) { s.Submit = []Route{{JobID: []Pick{{}}}} }, "submit.jobId[0]"},
		"an id that is many":       {func(s *Service) { s.Submit = []Route{{JobID: []Pick{{JSON: "/jobs/*/id"}}}} }, "submit.jobId[0].json"},
		"a second submit without a path": {func(s *Service) {
			s.Submit = []Route{{Path: "/a", JobID: []Pick{{JSON: "/id"}}}, {JobID: []Pick{{JSON: "/id"}}}}
		}, "submit[1].match.path"},
		"a second submit without an id": {func(s *Service) {
			s.Submit = []Route{{Path: "/a", JobID: []Pick{{JSON: "/id"}}}, {Path: "/b"}}
		}, "submit[1].jobId"},
		"a lease that can be none":      {func(s *Service) { s.Lease = "../x" }, "lease"},
		"an optional lease of nobody":   {func(s *Service) { s.Optional = true }, "optional"},
		"no lease that is optional":     {func(s *Service) { s.Lease, s.Optional = "none", true }, "optional"},
		"an end of nothing":             {func(s *Service) { s.Poll.Terminal = []End{{Outcome: "ok"}} }, "poll.terminal[0]"},
		"an unknown outcome":            {func(s *Service) { s.Poll.Terminal = []End{{Status: []int{404}, Outcome: "x"}} }, "poll.terminal[0]"},
		"a negative wait":               {func(s *Service) { s.HoldMax = -1 }, "hold.max"},
		"an unknown abandoned":          {func(s *Service) { s.Abandoned.Mode = "x" }, "abandoned.mode"},
		"an unknown unmatched":          {func(s *Service) { s.Unmatched = "x" }, "unmatched"},
		"an impossible status":          {func(s *Service) { s.Busy.Status = 42 }, "busy.status"},
		"a further route of any method": {func(s *Service) { s.Other = []Route{{Path: "/x"}} }, "other[0].match"},
	} {
		t.Run(name, func(t *testing.T) {
			s := ok
			c.change(&s)
			_, err := s.Complete()
			var e *WrongError
			if err == nil {
				t.Fatal("it is taken")
			}
			if e, _ = err.(*WrongError); e == nil || e.Key != c.key {
				t.Errorf("error is %v; want key %s", err, c.key)
			}
		})
	}
}

func TestOneSubmitIsCompletedByItsPresetAndAListIsNot(t *testing.T) {
	one, err := Service{Preset: "rbehzadan", Upstream: "http://x", Submit: []Route{{Path: "/compile"}}}.Complete()
	if err != nil || len(one.Submit) != 1 || one.Submit[0].Path != "/compile" || len(one.Submit[0].JobID) != 2 {
		t.Errorf("one route: %+v, %v", one.Submit, err)
	}
	id := []Pick{{JSON: "/id"}}
	two, err := Service{Preset: "rbehzadan", Upstream: "http://x", Submit: []Route{{Path: "/a", JobID: id}, {Path: "/b", JobID: id, Methods: []string{"GET"}}}}.Complete()
	if err != nil || len(two.Submit) != 2 || two.Submit[0].Methods[0] != "POST" || two.Submit[1].Methods[0] != "GET" || len(two.Submit[0].Terminal) != 0 {
		t.Errorf("two routes: %+v, %v", two.Submit, err)
	}
}
