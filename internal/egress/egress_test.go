package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestPublic(t *testing.T) {
	for _, a := range []string{"1.1.1.1", "8.8.8.8", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1", "192.0.1.1", "223.255.255.255",
		"2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "::ffff:1.1.1.1"} {
		t.Run(a+" is public", func(t *testing.T) {
			if !Public(netip.MustParseAddr(a)) {
				t.Error("refused")
			}
		})
	}
	for _, a := range []string{"0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "168.63.129.16",
		"169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255",
		"198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::10.0.0.1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
		"64:ff9b::a00:1", "64:ff9b::808:808", "64:ff9b:1::a00:1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:20::1", "2001:db8::1",
		"2002:7f00:1::", "2002:a00:1::1", "3fff::1", "5f00::1"} {
		t.Run(a+" is not public", func(t *testing.T) {
			if Public(netip.MustParseAddr(a)) {
				t.Error("taken")
			}
		})
	}
	t.Run("an address with a zone is never public", func(t *testing.T) {
		if Public(netip.MustParseAddr("2606:4700::1").WithZone("eth0")) {
			t.Error("taken")
		}
	})
}

func TestNew(t *testing.T) {
	for _, entry := range []string{"", "http://x", "host:80", "*", "*.*.a", "a/b", "*.", "-a", "10.0.0.0/33", "::ffff:10.0.0.0/104", "a..b"} {
		t.Run("the entry "+entry+" is refused by name", func(t *testing.T) {
			if _, err := New([]string{entry}); err == nil || !strings.Contains(err.Error(), `"`+entry+`"`) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// names is a resolver whose answers change from call to call.
type names map[string][][]netip.Addr

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	answers := n[host]
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(answers) > 1 {
		n[host] = answers[1:]
	}
	return answers[0], nil
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func listen(t *testing.T) (port string, accepted func() bool) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	got := make(chan struct{}, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			got <- struct{}{}
			c.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, func() bool { return len(got) > 0 }
}

func TestDialContext(t *testing.T) {
	port, accepted := listen(t)
	dial := func(t *testing.T, allow []string, n names, host string) error {
		p, err := NewWithResolver(allow, n)
		if err != nil {
			t.Fatal(err)
		}
		c, err := p.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		if err == nil {
			c.Close()
		}
		return err
	}
	refused := func(t *testing.T, err error) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("got %v", err)
		}
		if strings.Contains(err.Error(), "127.0.0.1") && !strings.Contains(e.Host, "127.0.0.1") {
			t.Error("the refusal tells what the name resolved to")
		}
	}
	t.Run("a literal private address is refused", func(t *testing.T) { refused(t, dial(t, nil, nil, "127.0.0.1")) })
	t.Run("an IPv4-mapped one too", func(t *testing.T) { refused(t, dial(t, nil, nil, "::ffff:127.0.0.1")) })
	t.Run("a name that resolves to a private address is refused", func(t *testing.T) {
		refused(t, dial(t, nil, names{"evil.example": {addrs("127.0.0.1", "::1", "10.0.0.1")}}, "evil.example"))
	})
	t.Run("a name that resolved to a public address when it was looked at and to a private one when it is dialled is refused", func(t *testing.T) {
		n := names{"rebind.example": {addrs("1.1.1.1"), addrs("127.0.0.1")}}
		p, err := NewWithResolver(nil, n)
		if err != nil {
			t.Fatal(err)
		}
		looked, err := n.LookupNetIP(t.Context(), "ip", "rebind.example")
		if err != nil || !p.AllowsAddr(looked[0]) {
			t.Fatal("the first answer was to look harmless")
		}
		_, err = p.DialContext(t.Context(), "tcp", "rebind.example:"+port)
		refused(t, err)
	})
	if accepted() {
		t.Fatal("a refused destination was reached")
	}
	t.Run("an allowed CIDR is reached", func(t *testing.T) {
		if err := dial(t, []string{"127.0.0.0/8"}, names{"in.example": {addrs("10.0.0.1", "127.0.0.1")}}, "in.example"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("an allowed host is reached whatever it resolves to", func(t *testing.T) {
		if err := dial(t, []string{"Up.Internal"}, names{"up.internal.": {addrs("127.0.0.1")}}, "up.internal."); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("an allowed suffix does not allow the bare name or one that ends alike", func(t *testing.T) {
		n := names{"a.svc.local": {addrs("127.0.0.1")}, "svc.local": {addrs("127.0.0.1")}, "evilsvc.local": {addrs("127.0.0.1")}}
		if err := dial(t, []string{"*.svc.local"}, n, "a.svc.local"); err != nil {
			t.Fatal(err)
		}
		refused(t, dial(t, []string{"*.svc.local"}, n, "svc.local"))
		refused(t, dial(t, []string{"*.svc.local"}, n, "evilsvc.local"))
	})
	t.Run("a name that is none is an error of the resolver and no refusal", func(t *testing.T) {
		err := dial(t, nil, names{}, "nowhere.example")
		var e *Error
		var dns *net.DNSError
		if errors.As(err, &e) || !errors.As(err, &dns) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestCheckURL(t *testing.T) {
	p, err := New([]string{"10.1.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		url string
		ok  bool
	}{
		{"https://example.com/mcp", true}, {"http://[::ffff:a01:203]/", true}, {"http://1.1.1.1", true}, {"http://10.1.2.3:80/", true},
		{"ftp://example.com", false}, {"http://u:p@example.com", false}, {"http:///x", false}, {"http://127.0.0.1/", false},
		{"http://[::1]:80/", false}, {"http://[::ffff:a00:1]/", false}, {"http://localhost:9/", false}, {"http://LOCALHOST./", false}, {"http://10.2.0.1/", false},
	} {
		t.Run(tc.url, func(t *testing.T) {
			u, err := url.Parse(tc.url)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.CheckURL(u); (err == nil) != tc.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}
