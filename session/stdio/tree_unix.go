//go:build unix && !linux

package stdio

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Protect does nothing here: only Linux has a per-process switch for it.
func Protect() error { return nil }

func selfExecutable() (string, error) { return os.Executable() }

// adoptOrphans does nothing here: descendants outside the process group are not
// found.
func adoptOrphans() error { return nil }

func programAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func onlyStandardDescriptors() {
	syscall.CloseOnExec(controlFD)
	syscall.CloseOnExec(statusFD)
}

func replaceDescriptor(from, to int) error { return unix.Dup2(from, to) }

// reap collects the program and reports whether its group is empty.
func (t *tree) reap() (gone bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD
			return syscall.Kill(-t.program, 0) == syscall.ESRCH
		case pid == 0:
			return false
		case pid == t.program:
			t.exited, t.status = true, ws
		}
	}
}

func (t *tree) ask() { _ = syscall.Kill(-t.program, syscall.SIGTERM) }

func (t *tree) kill() (found int) {
	_ = syscall.Kill(-t.program, syscall.SIGKILL)
	return 0
}

// members stands for the group, of which only its leader is known.
func (t *tree) members() int { return 1 }
