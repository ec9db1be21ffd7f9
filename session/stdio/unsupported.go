//go:build !unix

package stdio

import (
	"context"
	"errors"
	"runtime"
)

var errUnsupported = errors.New("stdio: MCP servers over stdio need a Unix system; this is " + runtime.GOOS)

// Process is a running program. There are none on this system.
type Process struct{ none struct{} }

// MaybeRunGuard does nothing on this system.
func MaybeRunGuard() {}

// Protect does nothing on this system.
func Protect() error { return nil }

// Start refuses.
func Start(context.Context, Command) (*Process, error) { return nil, errUnsupported }

// Pid is never called, nor is any other method: Start makes no Process.
func (p *Process) Pid() int { return 0 }

// Done, see Pid.
func (p *Process) Done() <-chan struct{} { return nil }

// Err, see Pid.
func (p *Process) Err() error { return errUnsupported }

// Send, see Pid.
func (p *Process) Send(context.Context, []byte) error { return errUnsupported }

// Next, see Pid.
func (p *Process) Next(context.Context) ([]byte, error) { return nil, errUnsupported }

// Close, see Pid.
func (p *Process) Close(context.Context) error { return errUnsupported }
