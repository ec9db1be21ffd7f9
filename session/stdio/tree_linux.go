package stdio

import (
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Protect makes this process not dumpable: no other process of the same user can
// read its memory or environment, or attach to it, and it leaves no core file.
// serve calls it before it reads a secret. Root can still do all of that.
func Protect() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// selfExecutable is this binary even after an upgrade has replaced its file.
func selfExecutable() (string, error) { return "/proc/self/exe", nil }

// adoptOrphans makes this process the parent of every descendant that loses its
// own.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

func programAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// onlyStandardDescriptors keeps the program from inheriting anything else: the
// guard's own pipes, and what the gateway was started with.
func onlyStandardDescriptors() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) != nil { // before Linux 5.11
		syscall.CloseOnExec(controlFD)
		syscall.CloseOnExec(statusFD)
	}
}

func replaceDescriptor(from, to int) error { return unix.Dup3(from, to, 0) }

// reap collects the dead and reports whether nobody is left: every living
// descendant has an ancestor among the guard's children.
func (t *tree) reap() (gone bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|syscall.WALL, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD
			return true
		case pid == 0:
			return false
		case pid == t.program:
			t.exited, t.status = true, ws
		}
	}
}

// ask sends SIGTERM to every process group of the tree: once to each process,
// since a program may count.
func (t *tree) ask() {
	groups := map[int]bool{}
	t.walk(func(m member) {
		if m.group != syscall.Getpgrp() && !groups[m.group] {
			groups[m.group] = true
			_ = syscall.Kill(-m.group, syscall.SIGTERM)
		}
	})
}

// kill sends SIGKILL to every descendant in the moment in which it is found: of a
// chain of processes that each start the next and end, a member found earlier is
// gone already. Its group goes with it, since a signal to a group leaves out
// none that is being forked at the moment. It reports how many there were.
func (t *tree) kill() (found int) {
	t.walk(func(m member) {
		found++
		// The program's own session keeps all of its tree out of the guard's group;
		// before it has made that session it is still there.
		if m.group != syscall.Getpgrp() {
			_ = syscall.Kill(-m.group, syscall.SIGKILL)
		}
		_ = syscall.Kill(m.pid, syscall.SIGKILL)
	})
	return found
}

type member struct{ pid, parent, group int }

// walkBatch is how many names of /proc are read at once: few, so that a process
// is looked at soon after it was listed.
const walkBatch = 16

// walk calls f for every living descendant of this process that it meets in /proc,
// where processes stand by their number: a child nearly always after its parent.
// One that stands before it is met once its parent is gone and it is the guard's
// own child, or when f has been called for the others and walk goes on with it.
func (t *tree) walk(f func(member)) {
	dir, err := os.Open("/proc")
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	mine := map[int]bool{os.Getpid(): true}
	early := map[int][]member{} // by parent, met before it
	var meet func(m member)
	meet = func(m member) {
		mine[m.pid] = true
		f(m)
		for _, c := range early[m.pid] {
			meet(c)
		}
	}
	for {
		names, err := dir.Readdirnames(walkBatch)
		if err != nil {
			return
		}
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			m, ok := readMember(pid)
			switch {
			case !ok:
			case mine[m.parent]:
				meet(m)
			default:
				early[m.parent] = append(early[m.parent], m)
			}
		}
	}
}

// members counts the tree.
func (t *tree) members() (n int) {
	t.walk(func(member) { n++ })
	return n
}

// readMember reads "pid (name) state parent group …", where the name may hold
// anything, brackets too.
func readMember(pid int) (member, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return member{}, false
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 3 {
		return member{}, false
	}
	parent, err1 := strconv.Atoi(f[1])
	group, err2 := strconv.Atoi(f[2])
	return member{pid: pid, parent: parent, group: group}, err1 == nil && err2 == nil && f[0] != "X" && f[0] != "Z"
}
