//go:build unix

package h1

import (
	"errors"
	"net"
	"syscall"
)

// canPeek says that an idle connection can be looked at without waiting.
const canPeek = true

// silence returns how to look whether nothing has come in on an idle connection,
// its end included.
func silence(c net.Conn) func() bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return func() bool { return false }
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return func() bool { return false }
	}
	var b [1]byte
	silent := false
	look := func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = errors.Is(err, syscall.EAGAIN)
		return true
	}
	return func() bool { return raw.Read(look) == nil && silent }
}
