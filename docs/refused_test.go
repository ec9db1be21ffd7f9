package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	saying = regexp.MustCompile("(?m)^\\| `([^`]+)`")
	// What stands for a value in a sentence.
	value = regexp.MustCompile(`…|: `)
)

// A sentence that clients are told no more would send its reader astray.
func TestTheSentencesOfRefusalsAreThoseOfTheSource(t *testing.T) {
	var source strings.Builder
	for _, dir := range []string{"gateway", "lease", "session"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			source.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile("refused.md")
	if err != nil {
		t.Fatal(err)
	}
	sentences := saying.FindAllStringSubmatch(string(page), -1)
	if len(sentences) < 25 {
		t.Errorf("only %d sentences", len(sentences))
	}
	// The level is a value as well.
	whole := strings.NewReplacer("the user limit of", "limit of", "the project limit of", "limit of")
	for _, m := range sentences {
		for _, part := range value.Split(whole.Replace(m[1]), -1) {
			if part = strings.TrimSpace(part); part != "" && !strings.Contains(source.String(), part) {
				t.Errorf("%q: no source has %q", m[1], part)
			}
		}
	}
}
