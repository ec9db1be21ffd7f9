package main

import (
	"bytes"
	"os"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// leaseSections are the parts of gateway.yaml that the lease commands need.
var leaseSections = []string{"store", "internal", "pod", "tls", "lease"}

// loadForLease reads gateway.yaml for the lease commands. An operator's shell
// seldom has the secrets of identity, session or tex in its environment, so
// where the whole file is not in order here, the sections that the commands need
// are read alone. Documents are then not known, and empty.
func loadForLease(path string, lookupEnv func(string) (string, bool)) (*config.Gateway, error) {
	g, err := config.Load(path, lookupEnv)
	if err == nil {
		return g, nil
	}
	text, readErr := os.ReadFile(path)
	if readErr != nil || len(text) > config.MaxSize {
		return nil, err
	}
	part, ok := onlySections(text, leaseSections)
	if !ok {
		return nil, err
	}
	if g, err = config.Parse(path, part, lookupEnv); err != nil {
		return nil, err
	}
	g.Documents = config.Documents{}
	return g, nil
}

// onlySections blanks the lines of all other top-level keys, so that complaints
// still name the right line. It is false where the text is not a block mapping.
func onlySections(text []byte, keep []string) ([]byte, bool) {
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode || doc.Content[0].Style&yaml.FlowStyle != 0 {
		return nil, false
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	root := doc.Content[0].Content
	for i := 0; i < len(root); i += 2 {
		if slices.Contains(keep, root[i].Value) {
			continue
		}
		end := len(lines)
		if i+2 < len(root) {
			end = root[i+2].Line - 1
		}
		for n := root[i].Line - 1; n < end; n++ {
			lines[n] = []byte("\n")
		}
	}
	return bytes.Join(lines, nil), true
}
