package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/internal/telemetry"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// recordHelp is for the commands that can act without a pod.
const recordHelp = `What is done without a pod the command writes to the audit log itself: to the file of
telemetry.audit, or where that is not set to standard error. Where it cannot, nothing
is done; --audit-file names another file then.`

// recordTime is how long the audit log may take to be opened, or to take a line.
const recordTime = 3 * time.Second

// record is the audit log for what a command does without a pod.
type record struct {
	trail *telemetry.Trail
	name  string // what it is called in sentences
	by    string
	errs  io.Writer // takes the records that the trail does not

	mu     sync.Mutex
	failed error
}

// openRecord opens the audit log that gateway.yaml or --audit-file names. An
// error means that nothing may be done.
func (t *leaseTool) openRecord(ctx context.Context, c *cobra.Command) (*record, error) {
	path := t.flags.auditFile
	if path == "" {
		var err error
		if path, err = t.audit(t.flags.config); err != nil {
			return nil, refused(fmt.Errorf("telemetry.audit, the audit log that this has to be written to, cannot be read: %w; put that right, or name the file with --audit-file", err))
		}
	}
	r := &record{name: "the audit log " + path, by: view.ByOperator(operatorName()), errs: c.ErrOrStderr()}
	if path == "-" || leadsTo(path, c.OutOrStdout()) || leadsTo(path, c.ErrOrStderr()) {
		path = "" // standard output is for results: what reads -o json must find nothing else
	}
	if path == "" {
		r.name = "the audit log on standard error"
	}
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	var err error
	if r.trail, err = telemetry.OpenTrail(ctx, path, r.errs); err != nil {
		return nil, r.refuse(err)
	}
	return r, nil
}

// auditPath is the file of the audit log that gateway.yaml names; "" means none.
// Besides what every lease command needs, its section has to be in order here.
func auditPath(path string, lookupEnv func(string) (string, bool)) (string, error) {
	g, err := config.Load(path, lookupEnv)
	if err == nil {
		return g.Telemetry.Audit, nil
	}
	text, readErr := config.ReadFile(path, config.MaxSize)
	if readErr != nil || len(text) > config.MaxSize {
		return "", err
	}
	part, ok := onlySections(text, []string{"store", "internal", "tls", "lease", "telemetry"})
	if !ok {
		return "", err
	}
	if g, err = config.ParsePart(path, part, lookupEnv); err != nil {
		return "", err
	}
	return g.Telemetry.Audit, nil
}

// leadsTo reports whether path is the file, pipe or terminal behind w, such as
// /dev/stdout.
func leadsTo(path string, w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || path == "" {
		return false
	}
	here, err := f.Stat()
	there, pathErr := os.Stat(path)
	return err == nil && pathErr == nil && os.SameFile(here, there)
}

// intend writes what is asked for, before it is done: also where the command is
// killed half way, the log says who began what.
func (r *record) intend(ctx context.Context, e lease.Event) error {
	e.Kind, e.By, e.At = lease.EventForcing, r.by, time.Now()
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	if err := r.trail.Event(ctx, e); err != nil {
		return r.refuse(err)
	}
	return nil
}

// add writes what was done. A record that finds no room in the log is printed to
// standard error, and the error says so.
func (r *record) add(ctx context.Context, e lease.Event) error {
	err := r.trail.Event(ctx, e)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	where := "its record is on standard error"
	if last, lastErr := telemetry.OpenTrail(ctx, "", r.errs); lastErr != nil || last.Event(ctx, e) != nil {
		where = "its record is lost"
	}
	failed := &view.Error{Code: view.Unrecorded, Message: fmt.Sprintf("%s did not take it (%v); %s", r.name, err, where)}
	if r.failed == nil {
		r.failed = failed
	}
	return failed
}

// missing is the first failure of add.
func (r *record) missing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *record) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTime)
	defer cancel()
	if err := r.trail.Close(ctx); err != nil {
		return &codeError{codeFailed, fmt.Errorf("%s may lack what was done: %w", r.name, err)}
	}
	return nil
}

func (r *record) refuse(err error) error {
	return refused(fmt.Errorf("%s, which has to take the record of this, cannot be written: %w; run this as the user that the gateway runs as, make room or a folder for it, or name another file with --audit-file (- is standard error)", r.name, err))
}

// refused is a failure before anything was done, whatever lies behind it.
func refused(err error) error {
	return &codeError{codeFailed, fmt.Errorf("nothing was done: %w", err)}
}
