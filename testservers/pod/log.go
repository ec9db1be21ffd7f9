package pod

import (
	"encoding/json"
	"fmt"
	"strings"
)

// doubled names the first key that stands twice in one object of a log line: a
// reader of the log would keep either value. Lines that are not JSON have none.
func doubled(log string) (key, line string) {
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		if key := doubledIn(json.NewDecoder(strings.NewReader(line))); key != "" {
			return key, line
		}
	}
	return "", ""
}

// doubledIn reads one value.
func doubledIn(d *json.Decoder) string {
	t, err := d.Token()
	if err != nil {
		return ""
	}
	open, ok := t.(json.Delim)
	if !ok {
		return ""
	}
	seen := map[string]bool{}
	for d.More() {
		if open == '{' {
			name, err := d.Token()
			if err != nil {
				return ""
			}
			key := fmt.Sprint(name)
			if seen[key] {
				return key
			}
			seen[key] = true
		}
		if key := doubledIn(d); key != "" {
			return key
		}
	}
	_, _ = d.Token() // the closing one
	return ""
}
