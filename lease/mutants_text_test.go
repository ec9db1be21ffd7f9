package lease_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// edit changes the text of one file of the engine.
type edit struct {
	file     string
	old, new string // old stands in the file exactly once
}

// overlay writes the edited files and what makes the go command take them for
// the real ones, and returns the latter's path.
func (x mutant) overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, e := range x.edits {
		text, seen := texts[e.file]
		if !seen {
			b, err := os.ReadFile(e.file)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		if n := strings.Count(text, e.old); n != 1 {
			t.Fatalf("%s holds %d times what the mutant changes there, want once:\n%s", e.file, n, e.old)
		}
		texts[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	replace := map[string]string{}
	for file, text := range texts {
		edited := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(edited, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(here, file)] = edited
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTheTextOfMutantsIsFound keeps the mutants up with the engine's text; that
// they are killed takes a build each.
func TestTheTextOfMutantsIsFound(t *testing.T) {
	for _, x := range mutants {
		if x.edits != nil {
			t.Run(x.name, func(t *testing.T) { x.overlay(t) })
		}
	}
}
