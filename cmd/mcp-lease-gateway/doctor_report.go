package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// diagnosis is what the doctor has found.
type diagnosis struct {
	URL         string    `json:"url"`
	OK          bool      `json:"ok"`
	Unreachable bool      `json:"unreachable"`
	Steps       []finding `json:"steps"`
}

// finding is one step of it.
type finding struct {
	Step   string `json:"step"`
	OK     bool   `json:"ok"`
	Says   string `json:"says"`
	Means  string `json:"means,omitempty"` // for a client's user
	TookMs int64  `json:"tookMs"`
}

func (g *diagnosis) add(step string, began time.Time, ok bool, says, means string) {
	g.Steps = append(g.Steps, finding{step, ok, says, means, time.Since(began).Milliseconds()})
}

// shortestSecret is the shortest text that is hidden wherever it stands; a shorter
// one would be found in every word.
const shortestSecret = 4

// hide takes what nothing may print out of the words: a server can quote its
// request.
func (g *diagnosis) hide(secrets []string) {
	for i := range g.Steps {
		for _, s := range secrets {
			if len(s) >= shortestSecret {
				g.Steps[i].Says = strings.ReplaceAll(g.Steps[i].Says, s, "[hidden]")
			}
		}
	}
}

// longestSaid is how much of an answer is printed.
const longestSaid = 600

// print prints the findings; its error has the exit code.
func (g *diagnosis) print(w io.Writer, output string) error {
	failed := 0
	for _, f := range g.Steps {
		if !f.OK {
			failed++
		}
	}
	g.OK = failed == 0
	if output == "json" {
		if err := printJSON(w, g); err != nil {
			return err
		}
	} else if err := g.printText(w); err != nil {
		return err
	}
	switch {
	case g.Unreachable:
		return unreachable(errors.New("the URL cannot be reached"))
	case failed > 0:
		return &codeError{codeFailed, fmt.Errorf("%s failed", count(failed, "step"))}
	}
	return nil
}

func (g *diagnosis) printText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n\n", plain(g.URL)); err != nil {
		return err
	}
	t := newTable(w, "STEP", "RESULT", "TIME", "WHAT A CLIENT SEES")
	for _, f := range g.Steps {
		verdict := "ok"
		if !f.OK {
			verdict = "FAILED"
		}
		t.row(f.Step, verdict, fmt.Sprintf("%.2f s", float64(f.TookMs)/1000), shortened(f.Says))
		if f.Means != "" {
			t.row(" ", " ", " ", f.Means)
		}
	}
	return t.end()
}

// shortened is the start of a long answer, on one line.
func shortened(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > longestSaid {
		return string(r[:longestSaid]) + "…"
	}
	return s
}
