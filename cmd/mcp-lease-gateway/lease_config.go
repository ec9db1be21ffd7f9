package main

import (
	"bytes"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// leaseSections are the parts of gateway.yaml that the lease commands use, and
// then those that are left when the documents, or also this pod's own address,
// cannot be read here.
var leaseSections = [][]string{
	{"store", "internal", "tls", "lease", "pod", "documents"},
	{"store", "internal", "tls", "lease", "pod"},
	{"store", "internal", "tls", "lease"},
}

// loadForLease reads gateway.yaml for the lease commands. An operator's shell
// seldom has the secrets of identity, session or tex in its environment, so
// where the whole file is not in order here, the sections that the commands need
// are read alone.
func loadForLease(path string, lookupEnv func(string) (string, bool)) (*config.Gateway, error) {
	g, err := config.Load(path, lookupEnv)
	if err == nil {
		return g, nil
	}
	text, readErr := config.ReadFile(path, config.MaxSize)
	if readErr != nil {
		return nil, err
	}
	for _, keep := range leaseSections {
		part, ok := onlySections(text, keep)
		if !ok {
			return nil, err
		}
		if g, err = config.ParsePart(path, part, lookupEnv); err == nil {
			if !slices.Contains(keep, "documents") {
				g.Documents = config.Documents{}
			}
			return g, nil
		}
	}
	return nil, err
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
