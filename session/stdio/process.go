//go:build unix

package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	// stdinGrace is how long Close lets a program end by itself after its
	// standard input was closed, as the protocol wants it.
	stdinGrace = 3 * time.Second
	// termGrace lies between SIGTERM and SIGKILL.
	termGrace = 2 * time.Second
	// killWait is how long Close waits for the guard after it was told to kill.
	killWait = 5 * time.Second
	// stderrWait bounds the wait for the end of standard error once the tree is
	// gone: what could not be killed may hold it open.
	stderrWait = time.Second
)

// Process is a running program with its guard. Send may be called by many at
// once; Next by one.
type Process struct {
	name    string
	guard   *exec.Cmd
	pid     int    // the program's
	home    string // private HOME
	in      *lineWriter
	out     *lineReader
	stderr  *stderrLog
	control *os.File
	status  *json.Decoder

	controlOnce sync.Once
	done        chan struct{}
	err         error // set before done is closed
}

// Start runs a program and returns when it has been executed. ctx bounds the
// start only; the program lives until Close.
func Start(ctx context.Context, c Command) (*Process, error) {
	if !guardRecognized.Load() {
		return nil, errors.New("stdio: this program cannot run guards: its main does not call stdio.MaybeRunGuard first")
	}
	if len(c.Args) == 0 || c.Args[0] == "" {
		return nil, errors.New("stdio: no command")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, status, err := startGuard(c)
	if err != nil {
		return nil, fmt.Errorf("stdio: %w", err)
	}
	go p.stderr.run()
	started := make(chan error, 1)
	go p.watch(status, started)

	o := order{Args: c.Args, Dir: c.Dir, Env: environ(c.Env), HomeSet: c.Env["HOME"] != "", TermGrace: termGrace}
	if err = p.order(ctx, o); err == nil {
		select {
		case err = <-started:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		_ = p.kill()
		p.out.close()
		return nil, fmt.Errorf("stdio: start %s: %w", p.name, err)
	}
	return p, nil
}

// startGuard starts the guard of a program that it has not been told yet. It
// returns the pipe of the guard's reports as well.
func startGuard(c Command) (p *Process, status *os.File, err error) {
	var pipes pipeSet
	stdinR, stdinW := pipes.make()
	stdoutR, stdoutW := pipes.make()
	stderrR, stderrW := pipes.make()
	controlR, controlW := pipes.make()
	statusR, statusW := pipes.make()
	guard, err := guardCommand()
	if err == nil {
		err = pipes.err
	}
	if err == nil {
		guard.Stdin, guard.Stdout, guard.Stderr = stdinR, stdoutW, stderrW
		guard.ExtraFiles = []*os.File{controlR, statusW}
		err = guard.Start()
	}
	if err != nil {
		pipes.closeAll()
		return nil, nil, fmt.Errorf("start the guard: %w", err)
	}
	// The guard's ends must not stay open here: end of file on standard output
	// and on status means that nobody there writes any more.
	for _, f := range []*os.File{stdinR, stdoutW, stderrW, controlR, statusW} {
		_ = f.Close()
	}
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Process{
		name:    c.Args[0],
		guard:   guard,
		in:      newLineWriter(stdinW),
		out:     newLineReader(stdoutR),
		stderr:  newStderrLog(log, stderrR, c.Env),
		control: controlW,
		status:  json.NewDecoder(statusR),
		done:    make(chan struct{}),
	}, statusR, nil
}

// order writes the order. A guard that reads nothing must not hold the caller.
func (p *Process) order(ctx context.Context, o order) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if t, ok := ctx.Deadline(); ok {
		_ = p.control.SetWriteDeadline(t)
	}
	_, err = p.control.Write(append(b, '\n'))
	return err
}

// watch follows the guard from its start to its end.
func (p *Process) watch(status io.ReadCloser, started chan<- error) {
	var exit *report
	for {
		var r report
		if err := p.status.Decode(&r); err != nil {
			break
		}
		switch {
		case r.Error != "":
			started <- errors.New(r.Error)
		case r.Exited:
			exit = &r
		case r.Left > 0:
			p.stderr.log.Error("processes of an MCP server could not be killed", "count", r.Left)
		default:
			p.pid, p.home = r.Pid, r.Home
			started <- nil
		}
	}
	_ = status.Close()
	guardErr := p.guard.Wait()
	select {
	case started <- fmt.Errorf("the guard ended before it had started the program: %v", guardErr):
	default:
	}
	if exit == nil && p.pid > 0 {
		// The guard was killed. The kernel has killed the program with it; the
		// rest of its process group is left to us.
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	}
	if p.home != "" {
		_ = os.RemoveAll(p.home) // the guard has done it, unless it was killed
	}
	p.closeControl(false)
	p.in.close()
	p.stderr.wait(stderrWait)
	p.err = p.exitError(exit)
	close(p.done)
}

func (p *Process) exitError(r *report) error {
	e := &ExitError{Name: p.name, Stderr: p.stderr.lastLines()}
	switch {
	case r == nil:
		e.Code, e.Signal = -1, syscall.SIGKILL.String()
	case r.Signal != 0:
		e.Code, e.Signal = -1, syscall.Signal(r.Signal).String()
	case r.Code != 0:
		e.Code = r.Code
	default:
		return nil
	}
	return e
}

// Pid is the program's process id.
func (p *Process) Pid() int { return p.pid }

// Done is closed when the program and its descendants are gone and reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the program ended, once Done is closed: nil for status 0, else an
// *ExitError.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Send writes one message. It returns when the program's pipe has taken it, with
// ctx.Err() when ctx ended before that, or with [ErrClosed]. When ctx ends, a
// message of which nothing went out is withdrawn; one that was begun is finished
// in the background, since half a line would spoil the next, and until then other
// messages wait. line is not kept. Line breaks within it, which JSON has between
// its tokens only, go out as spaces. Longer than [MaxLine]: [ErrTooLong].
func (p *Process) Send(ctx context.Context, line []byte) error { return p.in.send(ctx, line) }

// Next returns the next message, without its line break, for the caller to keep;
// empty lines are passed over. [ErrTooLong] means that one message over [MaxLine]
// was dropped and the next can be read. io.EOF comes when the program has closed
// its output or is gone. When ctx ends, what has been read of a line is kept.
func (p *Process) Next(ctx context.Context) ([]byte, error) { return p.out.next(ctx) }

// Close ends the program: its standard input is closed; after 3 s the whole tree
// gets SIGTERM, after 2 more SIGKILL. When ctx ends, SIGKILL comes at once. It
// returns when the tree is gone, or with an error 5 s after SIGKILL. A
// second Close waits for the same end. Messages that were not read are dropped.
func (p *Process) Close(ctx context.Context) error {
	defer p.out.close()
	p.in.close()
	t := time.NewTimer(stdinGrace)
	defer t.Stop()
	select {
	case <-p.done:
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	if ctx.Err() == nil {
		p.closeControl(false)
		t.Reset(termGrace + killWait)
		select {
		case <-p.done:
			return nil
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return p.kill()
}

// kill ends the tree without grace.
func (p *Process) kill() error {
	p.in.close()
	p.closeControl(true)
	_ = p.guard.Process.Signal(syscall.SIGCONT) // should somebody have stopped it
	t := time.NewTimer(killWait)
	defer t.Stop()
	select {
	case <-p.done:
		return nil
	case <-t.C:
	}
	// The guard goes on trying; without it the rest of the tree would be nobody's.
	return fmt.Errorf("stdio: %s is still not gone %s after it was killed", p.name, killWait)
}

// closeControl breaks the control pipe, with now after the word that there is no
// time for a grace. The word also reaches a guard whose pipe was closed before:
// it looks for SIGINT as well.
func (p *Process) closeControl(now bool) {
	p.controlOnce.Do(func() {
		if now {
			_, _ = p.control.Write([]byte{killNow})
			now = false
		}
		_ = p.control.Close()
	})
	if now {
		_ = p.guard.Process.Signal(syscall.SIGINT)
	}
}

// pipeSet makes pipes and remembers the first error.
type pipeSet struct {
	files []*os.File
	err   error
}

func (s *pipeSet) make() (r, w *os.File) {
	if s.err != nil {
		return nil, nil
	}
	r, w, s.err = os.Pipe()
	if s.err == nil {
		s.files = append(s.files, r, w)
	}
	return r, w
}

func (s *pipeSet) closeAll() {
	for _, f := range s.files {
		_ = f.Close()
	}
}
