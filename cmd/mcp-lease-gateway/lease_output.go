package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// printJSON is -o json.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
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
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '�'
		}
		return r
	}, s)
}
