package stdio

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// MaxLine is the longest message in either direction, in bytes.
const MaxLine = 32 << 20

// Why a message did not pass.
var (
	ErrTooLong = errors.New("stdio: message over 32 MiB")
	ErrClosed  = errors.New("stdio: the program has ended or its input is closed")
)

// Command says what to run. It comes from a system or bundled server document.
type Command struct {
	// Args is the program and its arguments. A program without a slash is looked
	// up in the document's PATH, else the gateway's; one with a slash but not at
	// the root is under Dir.
	Args []string
	// Dir is the working directory; empty means the private HOME.
	Dir string
	// Env is added to PATH, LANG and HOME, and wins over them. Its values never
	// appear in the log.
	Env map[string]string
	// Log takes the program's standard error; nil drops it.
	Log *slog.Logger
}

// ExitError is a program that ended with another status than 0. The last lines
// of its standard error are for operators, not for clients.
type ExitError struct {
	Name   string
	Code   int    // exit status; -1 when a signal ended it
	Signal string // or ""
	Stderr []string
}

func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit status %d", e.Code)
	if e.Signal != "" {
		how = "signal: " + e.Signal
	}
	s := fmt.Sprintf("%s ended (%s)", e.Name, how)
	if len(e.Stderr) > 0 {
		s += ": " + strings.Join(e.Stderr, " | ")
	}
	return s
}
