//go:build unix

package stdio

import (
	"cmp"
	"os"
	"slices"
)

// environ is the environment of a program, but for HOME, which the guard makes:
// the document's variables over PATH and LANG, and nothing else of the gateway's.
func environ(doc map[string]string) []string {
	env := map[string]string{
		"PATH": cmp.Or(os.Getenv("PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
		"LANG": cmp.Or(os.Getenv("LANG"), "C.UTF-8"),
	}
	for k, v := range doc {
		env[k] = v
	}
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}
