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

// signal sends sig to every descendant. The process groups come first: a signal to
// a group leaves out none that is being forked at the moment, which a walk over
// single processes can miss.
func (t *tree) signal(sig syscall.Signal) {
	members := t.members()
	groups := map[int]bool{}
	for _, m := range members {
		// The program's own session keeps all of its tree out of the guard's
		// group; before it has made that session it is still there.
		if m.group != syscall.Getpgrp() && !groups[m.group] {
			groups[m.group] = true
			_ = syscall.Kill(-m.group, sig)
		}
	}
	if sig == syscall.SIGTERM {
		return // twice would look like impatience to a program that counts
	}
	for _, m := range members {
		_ = syscall.Kill(m.pid, sig)
	}
}

type member struct{ pid, parent, group int }

// members lists the living descendants of this process from /proc.
func (t *tree) members() []member {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	children := map[int][]member{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if m, ok := readMember(pid); ok {
			children[m.parent] = append(children[m.parent], m)
		}
	}
	var found []member
	for next := children[os.Getpid()]; len(next) > 0; {
		m := next[0]
		next = append(next[1:], children[m.pid]...)
		found = append(found, m)
	}
	return found
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
	return member{pid: pid, parent: parent, group: group}, err1 == nil && err2 == nil && f[0] != "X"
}
