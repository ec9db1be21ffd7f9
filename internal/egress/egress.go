package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Resolver turns a host name into addresses; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Policy is an immutable set of allowed destinations. It is safe for
// concurrent use. The zero Policy allows public addresses only.
type Policy struct {
	hosts    map[string]bool
	suffixes []string // with their leading dot
	prefixes []netip.Prefix
	resolver Resolver
}

// Error says that a destination is not allowed. It names what was asked for and
// never what a name resolved to, which is the operator's network.
type Error struct{ Host string }

func (e *Error) Error() string {
	return "egress: " + e.Host + " is not a public address and egress.allow does not name it"
}

// attemptTimeout is the longest wait for one of several addresses.
const attemptTimeout = 5 * time.Second

var hostForm = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*$`)

// New reads egress.allow: hosts, *.suffixes and CIDRs.
func New(allow []string) (*Policy, error) { return NewWithResolver(allow, net.DefaultResolver) }

// NewWithResolver is New with another resolver than the system's.
func NewWithResolver(allow []string, r Resolver) (*Policy, error) {
	p := &Policy{hosts: map[string]bool{}, resolver: r}
	for _, entry := range allow {
		if err := p.add(entry); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *Policy) add(entry string) error {
	if prefix, err := netip.ParsePrefix(entry); err == nil {
		if prefix.Addr().Is4In6() {
			return fmt.Errorf("%q: write an IPv4 network as such", entry)
		}
		p.prefixes = append(p.prefixes, prefix.Masked())
		return nil
	}
	if addr, err := netip.ParseAddr(entry); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		p.prefixes = append(p.prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		return nil
	}
	host := canonical(entry)
	if suffix, ok := strings.CutPrefix(host, "*."); ok && hostForm.MatchString(suffix) {
		p.suffixes = append(p.suffixes, "."+suffix)
		return nil
	}
	if hostForm.MatchString(host) {
		p.hosts[host] = true
		return nil
	}
	return fmt.Errorf("%q: a host, *.suffix or CIDR is wanted, without scheme and port", entry)
}

// DialContext dials addr, host:port, where the policy allows it. Of a name's
// addresses only allowed ones are tried; where there is none it returns an
// *Error.
func (p *Policy) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	named := p.allowsName(host)
	addrs, err := p.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	if !named {
		addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !p.AllowsAddr(a) })
	}
	if len(addrs) == 0 {
		return nil, &Error{Host: host}
	}
	dialer := net.Dialer{
		// The second look at the address, where the kernel is about to use it.
		Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil || !named && !p.AllowsAddr(ap.Addr()) {
				return &Error{Host: host}
			}
			return nil
		},
	}
	var failed error
	for i, a := range addrs {
		attempt, cancel := ctx, context.CancelFunc(func() {})
		if i+1 < len(addrs) { // an address that swallows packets must not cost the next one its turn
			attempt, cancel = context.WithTimeout(ctx, attemptTimeout)
		}
		conn, err := dialer.DialContext(attempt, network, net.JoinHostPort(a.String(), port))
		cancel()
		if err == nil {
			return conn, nil
		}
		failed = errors.Join(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

func (p *Policy) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	var r Resolver = net.DefaultResolver
	if p.resolver != nil {
		r = p.resolver
	}
	addrs, err := r.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addrs) == 0 {
		err = &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return addrs, err
}

// CheckURL finds what is wrong with a URL before anything is dialled: its
// scheme, a user in it, or a literal address that is not allowed. A name is
// judged when it is dialled.
func (p *Policy) CheckURL(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("egress: the URL must begin with http:// or https://")
	case u.User != nil:
		return errors.New("egress: the URL must not hold a user or password")
	case u.Hostname() == "":
		return errors.New("egress: the URL names no host")
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil && !p.AllowsAddr(a) {
		return &Error{Host: u.Hostname()}
	}
	if h := canonical(u.Hostname()); (h == "localhost" || strings.HasSuffix(h, ".localhost")) && !p.allowsName(h) && !p.AllowsAddr(netip.AddrFrom4([4]byte{127, 0, 0, 1})) {
		return &Error{Host: u.Hostname()}
	}
	return nil
}

func (p *Policy) allowsName(host string) bool {
	h := canonical(host)
	if p.hosts[h] {
		return true
	}
	return slices.ContainsFunc(p.suffixes, func(s string) bool { return len(h) > len(s) && strings.HasSuffix(h, s) })
}

// AllowsAddr reports whether an address is public or within an allowed CIDR.
func (p *Policy) AllowsAddr(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	a = a.Unmap() // ::ffff:10.0.0.1 is 10.0.0.1 to the kernel
	for _, prefix := range p.prefixes {
		if prefix.Contains(a) {
			return true
		}
	}
	return Public(a)
}

func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }
