package telemetry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// auditQueue bounds the records that wait to be written. What happens must not
// wait for a disk; a record that finds no room is counted and said in the log.
const auditQueue = 8192

// Audit writes what happens as JSON lines: acquires refused, leases revoked,
// forced, swept or closed, sweeps and reconciles that were asked for, and
// documents changed: who, what, when. It holds no secrets: tokens are
// shortened, payloads are not in it.
type Audit struct {
	out     io.Writer
	file    *auditFile // nil where out is not a file of its own
	log     *slog.Logger
	queue   chan auditRecord
	stopped chan struct{}
	dropped atomic.Int64
	once    sync.Once
	// closing keeps a late event from a closed queue.
	closing sync.RWMutex
	closed  bool
}

// auditRecord is one line.
type auditRecord struct {
	lease.Event
	// Document is the text that changed: tenant/project/path.
	Document string `json:"document,omitempty"`
}

// OpenAudit opens the audit log at path; "" means out. A file is made 0600,
// appended to, and opened anew when it was moved away (log rotation).
func OpenAudit(path string, out io.Writer, log *slog.Logger) (*Audit, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &Audit{out: out, log: log, queue: make(chan auditRecord, auditQueue), stopped: make(chan struct{})}
	if path != "" {
		f, err := openAuditFile(path)
		if err != nil {
			return nil, fmt.Errorf("telemetry.audit: %w", err)
		}
		a.file, a.out = f, f
	}
	go a.write()
	return a, nil
}

// Event records what happened to a lease.
func (a *Audit) Event(e lease.Event) { a.record(auditRecord{Event: e}) }

// Changed records that documents changed. A change without a path means that
// anything of its scope may have.
func (a *Audit) Changed(changes ...document.Change) {
	for _, c := range changes {
		name := c.Key.Tenant + "/" + c.Key.Project + "/" + c.Key.Path
		if c.Key.Path == "" {
			name = "*"
		}
		a.record(auditRecord{Event: lease.Event{Kind: "definition", Tenant: c.Key.Tenant, Project: c.Key.Project}, Document: name})
	}
}

func (a *Audit) record(r auditRecord) {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	r.At = r.At.UTC()
	a.closing.RLock()
	defer a.closing.RUnlock()
	if a.closed {
		return
	}
	select {
	case a.queue <- r:
	default:
		if n := a.dropped.Add(1); n == 1 || n%1000 == 0 {
			a.log.Error("the audit log cannot keep up; records are lost", "lost", n)
		}
	}
}

// Dropped is how many records were lost.
func (a *Audit) Dropped() int64 { return a.dropped.Load() }

func (a *Audit) write() {
	defer close(a.stopped)
	failing := false
	for r := range a.queue {
		line, err := json.Marshal(r)
		if err == nil {
			_, err = a.out.Write(append(line, '\n'))
		}
		if err != nil {
			a.dropped.Add(1)
			if !failing {
				a.log.Error("the audit log cannot be written; records are lost", "error", err)
			}
		}
		failing = err != nil
	}
}

// Close writes what is left and closes the file.
func (a *Audit) Close() error {
	a.once.Do(func() {
		a.closing.Lock()
		a.closed = true
		close(a.queue)
		a.closing.Unlock()
	})
	<-a.stopped
	if a.file != nil {
		return a.file.close()
	}
	return nil
}

// auditFile is an appended file that follows its name.
type auditFile struct {
	path   string
	f      *os.File
	looked time.Time
}

// lookEvery is how often it is checked whether the file was moved away.
const lookEvery = time.Second

func openAuditFile(path string) (*auditFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &auditFile{path: path, f: f, looked: time.Now()}, nil
}

func (a *auditFile) Write(b []byte) (int, error) {
	if a.f == nil || time.Since(a.looked) >= lookEvery {
		if err := a.follow(); err != nil {
			return 0, err
		}
	}
	return a.f.Write(b)
}

// follow opens the file anew where its name is another file's or nobody's.
func (a *auditFile) follow() error {
	a.looked = time.Now()
	if a.f != nil {
		here, err := a.f.Stat()
		there, statErr := os.Stat(a.path)
		if err == nil && statErr == nil && os.SameFile(here, there) {
			return nil
		}
	}
	fresh, err := openAuditFile(a.path)
	if err != nil {
		return err
	}
	err = a.close()
	a.f = fresh.f
	return err
}

func (a *auditFile) close() error {
	if a.f == nil {
		return nil
	}
	err := errors.Join(a.f.Sync(), a.f.Close())
	a.f = nil
	return err
}
