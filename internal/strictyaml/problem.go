package strictyaml

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong, or surprising, and where.
type Problem struct {
	File string
	Line int    // 0 where the whole file is meant
	Key  string // such as session.keys[0]; "" where the whole file is meant
	What string // what is wrong and what to do
	// Reason is What where that quotes nothing of the file, and else as much of it
	// as quotes nothing, so that somebody may read it who may not read the file; ""
	// where there is none.
	Reason string
}

func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Where())
	b.WriteString(": ")
	if p.Key != "" {
		b.WriteString(p.Key)
		b.WriteString(": ")
	}
	b.WriteString(p.What)
	return b.String()
}

// Where is file:line.
func (p Problem) Where() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Problems are all that was found in one go. A non-empty list is an error.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Err returns nil for an empty list.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// Sort orders by file and line, so that a reader walks through a file once.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		return a.Line - b.Line
	})
}
