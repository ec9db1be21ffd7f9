package telemetry

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Bounds of the records that wait to be written. What happens must not wait for a
// disk; a record that finds no room is counted and said in the log.
const (
	auditQueue = 8192
	// auditShare is how many of them are one tenant's refusals, which its clients
	// make as fast as they can ask.
	auditShare = auditQueue / 8
)

// Audit writes what happens as JSON lines: acquires refused, leases revoked,
// forced, swept or closed, sweeps and reconciles that were asked for, and
// documents changed: who, what, when. It holds no secrets: tokens are
// shortened, payloads are not in it.
type Audit struct {
	*auditLines
	log     *slog.Logger
	queue   chan auditRecord
	stopped chan struct{}
	dropped atomic.Int64
	refused map[string]int // by tenant: its refusals in the queue
	mu      sync.Mutex     // of refused
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
	lines, err := openAuditLines(path, out, false)
	if err != nil {
		return nil, fmt.Errorf("telemetry.audit: %w", err)
	}
	a := &Audit{auditLines: lines, log: log, queue: make(chan auditRecord, auditQueue), refused: map[string]int{}, stopped: make(chan struct{})}
	go a.drain()
	return a, nil
}

// Event records what happened to a lease.
func (a *Audit) Event(e lease.Event) { a.record(auditRecord{Event: e}) }

// Changed records that documents changed: seen is who told, or where it was seen,
// by which pod. A change without a path means that anything of its scope may have.
func (a *Audit) Changed(seen string, pod lease.PodID, changes ...document.Change) {
	for _, c := range changes {
		name := c.Key.Tenant + "/" + c.Key.Project + "/" + c.Key.Path
		if c.Key.Path == "" {
			name = "*"
		}
		a.record(auditRecord{Event: lease.Event{Kind: lease.EventDefinition, By: seen, Tenant: c.Key.Tenant, Project: c.Key.Project, Pod: pod}, Document: name})
	}
}

func (a *Audit) record(r auditRecord) {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	a.closing.RLock()
	defer a.closing.RUnlock()
	if a.closed {
		return
	}
	if a.takeShare(r) {
		select {
		case a.queue <- r:
			return
		default:
			a.giveShare(r)
		}
	}
	if n := a.dropped.Add(1); n == 1 || n%1000 == 0 {
		a.log.Error("the audit log cannot keep up; records are lost", "lost", n)
	}
}

// takeShare counts a refusal in the queue, and is false where its tenant has its
// share of them. Other records are few, and somebody's deliberate acts.
func (a *Audit) takeShare(r auditRecord) bool {
	if r.Kind != lease.EventRefused {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused[r.Tenant] >= auditShare {
		return false
	}
	a.refused[r.Tenant]++
	return true
}

func (a *Audit) giveShare(r auditRecord) {
	if r.Kind != lease.EventRefused {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused[r.Tenant]--; a.refused[r.Tenant] == 0 {
		delete(a.refused, r.Tenant)
	}
}

// Dropped is how many records were lost.
func (a *Audit) Dropped() int64 { return a.dropped.Load() }

func (a *Audit) drain() {
	defer close(a.stopped)
	failing := false
	for r := range a.queue {
		a.giveShare(r)
		err := a.write(r)
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
	return a.close()
}

// auditLines writes records as lines, each with one write.
type auditLines struct {
	out  io.Writer
	file *auditFile // nil where out is not a file of its own
}

func openAuditLines(path string, out io.Writer, beside bool) (*auditLines, error) {
	if path == "" {
		return &auditLines{out: out}, nil
	}
	f, err := openAuditFile(path, beside)
	if err != nil {
		return nil, err
	}
	return &auditLines{out: f, file: f}, nil
}

func (l *auditLines) write(r auditRecord) error {
	r.At = r.At.UTC()
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = l.out.Write(append(line, '\n'))
	return err
}

func (l *auditLines) close() error {
	if l.file == nil {
		return nil
	}
	return l.file.close()
}
