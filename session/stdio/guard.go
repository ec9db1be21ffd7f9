//go:build unix

package stdio

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// guardName is the argv[0] by which a guard knows that it is one. Neither the
	// environment nor the arguments, which a user could set, decide that.
	guardName = "mcp-lease-gateway: stdio guard"

	controlFD = 3 // the order, killNow, end of file = end the tree
	statusFD  = 4 // reports

	killNow = 'K'

	// giveUp is how long a guard goes on killing. What is left then belongs to
	// another user or hangs in the kernel.
	giveUp = time.Minute

	// killPasses is how often a tree is looked through in one go.
	killPasses = 20
)

// order is what the gateway tells its guard, in one line of JSON. It goes through
// a pipe since arguments can be read by every user of the machine.
type order struct {
	Args      []string      `json:"args"`
	Dir       string        `json:"dir,omitempty"`
	Env       []string      `json:"env"`
	HomeSet   bool          `json:"homeSet,omitempty"` // Env has a HOME of its own
	TermGrace time.Duration `json:"termGrace"`
}

// report is what the guard tells the gateway: first Pid or Error, then Exited,
// then perhaps Left.
type report struct {
	Pid    int    `json:"pid,omitempty"`
	Home   string `json:"home,omitempty"`
	Error  string `json:"error,omitempty"`
	Exited bool   `json:"exited,omitempty"`
	Code   int    `json:"code,omitempty"`
	Signal int    `json:"signal,omitempty"`
	Left   int    `json:"left,omitempty"`
}

// guardRecognized is set when this process' main has called MaybeRunGuard.
// Without that call a guard would run the whole program again, and so on.
var guardRecognized atomic.Bool

// MaybeRunGuard must be the first call in main, and in TestMain where tests start
// programs. In a guard process it does the guard's work and never returns.
func MaybeRunGuard() {
	if os.Args[0] == guardName {
		syscall.Exit(runGuard()) // nothing is to be flushed; a race build's os.Exit waits a second
	}
	guardRecognized.Store(true)
}

// guardCommand re-executes this binary.
func guardCommand() (*exec.Cmd, error) {
	exe, err := selfExecutable()
	if err != nil {
		return nil, err
	}
	return &exec.Cmd{
		Path: exe,
		Args: []string{guardName},
		// Nothing of the gateway's environment, where secrets may be.
		Env: []string{"GOMAXPROCS=1", "GOTRACEBACK=none", "TMPDIR=" + os.TempDir()},
		// A session of its own: no terminal and no signal to the gateway's group
		// reaches the guard.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}, nil
}

// runGuard starts the ordered program, waits for its end or the gateway's, ends
// the tree and returns the exit status.
func runGuard() int {
	// The program's death signal is tied to the thread that started it.
	runtime.LockOSThread()
	onlyStandardDescriptors()
	if err := Protect(); err != nil {
		return refuse(err)
	}
	if err := adoptOrphans(); err != nil {
		return refuse(err)
	}

	// Handlers, not SIG_IGN, which the program would inherit.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)

	control := bufio.NewReader(os.NewFile(controlFD, "control"))
	line, err := control.ReadBytes('\n')
	if err != nil {
		return 1 // the gateway is gone
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return refuse(err)
	}

	home, err := os.MkdirTemp("", "mcp-home-")
	if err != nil {
		return refuse(err)
	}
	defer func() { _ = os.RemoveAll(home) }()
	t, err := startTree(o, home)
	if err != nil {
		return refuse(err)
	}
	dropStandardDescriptors()
	tell(report{Pid: t.program, Home: home})
	debug.FreeOSMemory()

	orders := make(chan byte)
	go func() {
		for {
			b, err := control.ReadByte()
			if err != nil {
				close(orders)
				return
			}
			orders <- b
		}
	}()
	return t.guard(signals, orders, o.TermGrace)
}

// guard waits for the end and sees it through.
func (t *tree) guard(signals <-chan os.Signal, orders <-chan byte, grace time.Duration) int {
	e := ending{tree: t, grace: grace, tick: time.NewTimer(0)}
	e.tick.Stop()
	reported := false
	for {
		gone := t.reap()
		if t.exited && !reported {
			reported = true
			tell(exitReport(t.status))
			e.ask() // what the program leaves behind
		}
		if gone {
			return 0
		}
		if e.spent > giveUp {
			tell(report{Left: t.members()})
			return 1
		}
		select {
		case s := <-signals:
			switch s {
			case syscall.SIGTERM:
				e.ask()
			case syscall.SIGINT:
				e.kill()
			}
		case b, ok := <-orders:
			switch {
			case !ok:
				orders = nil
				e.ask()
			case b == killNow:
				e.kill()
			}
		case <-e.tick.C:
			e.kill()
		}
	}
}

// ending is how far the end of a tree has come: it is asked once, killed after
// grace, and killed again until it is gone.
type ending struct {
	tree  *tree
	grace time.Duration
	tick  *time.Timer // when to kill next
	asked bool
	pause time.Duration // before the next kill; 0 before the first
	spent time.Duration // in pauses
}

func (e *ending) ask() {
	if e.asked || e.pause > 0 {
		return
	}
	e.asked = true
	e.tree.ask()
	e.tick.Reset(e.grace)
}

func (e *ending) kill() {
	// A tree that forks while it is killed is looked at again at once.
	for range killPasses {
		if e.tree.kill() == 0 {
			break
		}
		e.tree.reap()
	}
	// One that cannot be killed is looked at ever more seldom.
	e.pause = min(max(2*e.pause, time.Millisecond), time.Second)
	e.tick.Reset(e.pause)
	e.spent += e.pause
}

func exitReport(s syscall.WaitStatus) report {
	if s.Signaled() {
		return report{Exited: true, Signal: int(s.Signal())}
	}
	return report{Exited: true, Code: s.ExitStatus()}
}

// tree is the program and its descendants, as their guard sees them.
type tree struct {
	program int
	exited  bool
	status  syscall.WaitStatus
}

// startTree starts the program in a session of its own: none of it can then join
// the guard's process group.
func startTree(o order, home string) (*tree, error) {
	env := o.Env
	if !o.HomeSet {
		env = append(env, "HOME="+home)
	}
	dir := o.Dir
	if dir == "" {
		dir = home
	}
	path, err := find(o.Args[0], dir, env)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("working directory: %w", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("working directory: %s is not a directory", dir)
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: []uintptr{0, 1, 2}, Sys: programAttributes()}
	pid, err := syscall.ForkExec(path, o.Args, attr)
	if err != nil {
		return nil, &os.PathError{Op: "exec", Path: path, Err: err}
	}
	return &tree{program: pid}, nil
}

// find looks the program up in the PATH that it will have itself.
func find(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, nil
	}
	for _, kv := range env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil {
				return "", err
			}
		}
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("program %q is not in PATH", name)
	}
	return path, err
}

// dropStandardDescriptors leaves the program the only holder of its pipes: the
// end of its output must reach the gateway.
func dropStandardDescriptors() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	for fd := range 3 {
		_ = replaceDescriptor(int(null.Fd()), fd)
	}
	_ = null.Close()
}

// tell writes a report. A gateway that is gone does not read it: the pipe is
// broken, and SIGPIPE is caught.
func tell(r report) {
	b, err := json.Marshal(r)
	if err == nil {
		_, _ = syscall.Write(statusFD, append(b, '\n'))
	}
}

func refuse(err error) int {
	tell(report{Error: err.Error()})
	return 1
}
