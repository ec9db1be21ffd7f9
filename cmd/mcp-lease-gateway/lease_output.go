package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
)

// printJSON is -o json. What a terminal would obey or turn round (C1 controls,
// bidirectional overrides) is escaped, for people look at JSON as well; a program
// that reads it gets the names as they are.
func printJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, escaped(string(text)))
	return err
}

// escaped writes the characters of a JSON text that cannot be seen as \u escapes.
// Outside its strings a JSON text has none but line ends.
func escaped(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// table is an aligned table with a heading.
type table struct {
	w   *tabwriter.Writer
	err error
}

func newTable(w io.Writer, heading ...string) *table {
	t := &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(heading...)
	return t
}

func (t *table) row(cells ...string) {
	for i, c := range cells {
		cells[i] = plain(c)
	}
	if _, err := fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t")); err != nil {
		t.err = err
	}
}

func (t *table) end() error {
	if err := t.w.Flush(); err != nil {
		return err
	}
	return t.err
}

// plain shows a name so that it cannot move the cursor, colour the terminal or
// break the table: names come from tenants.
func plain(s string) string {
	if s == "" {
		return "-"
	}
	return harmless(s, "")
}

// harmless replaces what a terminal would obey: texts of documents come from
// tenants as well, and errors quote them. What stands in kept stays.
func harmless(s, kept string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && !strings.ContainsRune(kept, r) {
			return '�'
		}
		return r
	}, s)
}
