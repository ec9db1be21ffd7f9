//go:build unix

package stdio

import (
	"bufio"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	stderrBuffer = 64 << 10 // longest line that is searched for secrets as a whole
	stderrLine   = 4 << 10  // longest line in the log
	stderrRate   = 20       // lines a second, after a burst
	stderrBurst  = 200
	lastCount    = 10  // lines kept for ExitError
	lastLine     = 512 // bytes of each
	shortSecret  = 4   // shorter values of the environment ("1", "true") are no secrets
)

// stderrLog copies a program's standard error to the log. It reads without a
// pause, so that a program never waits for its log, and drops what is too much.
type stderrLog struct {
	log     *slog.Logger
	f       *os.File
	redact  *strings.Replacer
	allowed *rate.Limiter
	dropped int
	done    chan struct{}

	mu   sync.Mutex
	last []string
}

func newStderrLog(log *slog.Logger, f *os.File, env map[string]string) *stderrLog {
	return &stderrLog{
		log:     log,
		f:       f,
		redact:  redactor(env),
		allowed: rate.NewLimiter(stderrRate, stderrBurst),
		done:    make(chan struct{}),
	}
}

// redactor replaces the values of a document's environment, and each line of a
// value that has several.
func redactor(env map[string]string) *strings.Replacer {
	var pairs []string
	for _, v := range env {
		for part := range strings.FieldsFuncSeq(v, func(r rune) bool { return r == '\n' || r == '\r' }) {
			if len(part) > shortSecret {
				pairs = append(pairs, part, "***")
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

func (s *stderrLog) run() {
	defer close(s.done)
	defer func() { _ = s.f.Close() }()
	r := bufio.NewReaderSize(s.f, stderrBuffer)
	for {
		line, err := r.ReadSlice('\n')
		cut := err == bufio.ErrBufferFull
		s.write(string(line), cut)
		for err == bufio.ErrBufferFull { // the rest of an overlong line
			_, err = r.ReadSlice('\n')
		}
		if err != nil {
			s.flush()
			return
		}
	}
}

func (s *stderrLog) write(line string, cut bool) {
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return
	}
	line = s.redact.Replace(line)
	if len(line) > stderrLine {
		line, cut = line[:stderrLine], true
	}
	s.keep(line)
	if !s.allowed.Allow() {
		s.dropped++
		return
	}
	s.flush()
	if cut {
		line += " …"
	}
	s.log.LogAttrs(context.Background(), slog.LevelInfo, "MCP server wrote to stderr", slog.String("line", strings.ToValidUTF8(line, "�")))
}

// flush says how many lines are missing.
func (s *stderrLog) flush() {
	if s.dropped > 0 {
		s.log.Warn("MCP server writes too much to stderr", "dropped", s.dropped)
		s.dropped = 0
	}
}

func (s *stderrLog) keep(line string) {
	line = strings.ToValidUTF8(line[:min(len(line), lastLine)], "�")
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) == lastCount {
		s.last = append(s.last[:0], s.last[1:]...)
	}
	s.last = append(s.last, line)
}

func (s *stderrLog) lastLines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.last...)
}

// wait waits for the end of standard error, at most d.
func (s *stderrLog) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
		_ = s.f.Close()
		<-s.done
	}
}
