package loopback_test

import (
	"net"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
)

func TestHost(t *testing.T) {
	for _, host := range []string{"localhost", "LOCALHOST:80", "localhost.:80", "app.localhost", "127.0.0.1", "127.8.9.1:80", "[::1]:80", "[::1]", "::1", "[::ffff:127.0.0.1]:80"} {
		if !loopback.Host(host) {
			t.Errorf("%s is not loopback", host)
		}
	}
	for _, host := range []string{"", ":80", "localhost.example", "notlocalhost", "127.0.0.1.example:80", "0.0.0.0:80", "[::]:80", "10.0.0.1", "128.0.0.1", "2130706433", "0x7f.1", "127.1"} {
		if loopback.Host(host) {
			t.Errorf("%s is loopback", host)
		}
	}
}

func TestAddr(t *testing.T) {
	for _, c := range []struct {
		addr net.Addr
		want bool
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, true}, {&net.TCPAddr{IP: net.IPv6loopback}, true}, {&net.UDPAddr{IP: net.IPv6loopback, Port: 1}, true},
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, false}, {&net.TCPAddr{}, false}, {&net.UnixAddr{Name: "/run/x", Net: "unix"}, false}, {nil, false},
	} {
		if got := loopback.Addr(c.addr); got != c.want {
			t.Errorf("%v: %v", c.addr, got)
		}
	}
}
