//go:build !unix

package h1

import "net"

// peekable: without a look at idle connections every request takes the long way.
const peekable = false

func watch(net.Conn) func() bool { return func() bool { return false } }
