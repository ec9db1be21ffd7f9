package egress

import "net/netip"

// notPublic is what the IANA special-purpose registries and the clouds keep out
// of the public address space. IPv6 needs only the exceptions within 2000::/3,
// since all else is refused.
var notPublic = prefixes(
	"0.0.0.0/8",         // this network
	"10.0.0.0/8",        // private
	"100.64.0.0/10",     // carrier-grade NAT, and one cloud's metadata
	"127.0.0.0/8",       // loopback
	"168.63.129.16/32",  // one cloud's host agent, on an address that looks public
	"169.254.0.0/16",    // link-local, where metadata services live
	"172.16.0.0/12",     // private
	"192.0.0.0/24",      // protocol assignments, and one cloud's metadata
	"192.0.2.0/24",      // documentation
	"192.31.196.0/24",   // AS112
	"192.52.193.0/24",   // AMT
	"192.88.99.0/24",    // 6to4 relays
	"192.168.0.0/16",    // private
	"192.175.48.0/24",   // AS112
	"198.18.0.0/15",     // benchmarks
	"198.51.100.0/24",   // documentation
	"203.0.113.0/24",    // documentation
	"224.0.0.0/4",       // multicast
	"240.0.0.0/4",       // reserved, and broadcast
	"2001::/23",         // protocol assignments: Teredo, ORCHID, benchmarks
	"2001:db8::/32",     // documentation
	"2002::/16",         // 6to4: an IPv4 address in it, private ones too
	"2620:4f:8000::/48", // AS112
	"3fff::/20",         // documentation
)

// unicast is all of IPv6 that is assigned for global use. Outside it are ::1,
// link-local, unique local, multicast, the NAT64 prefixes (64:ff9b::/96 and
// 64:ff9b:1::/48, which hold an IPv4 address, private ones too), IPv4-compatible
// and discard-only addresses.
var unicast = netip.MustParsePrefix("2000::/3")

// Public reports whether an address belongs to the public Internet.
func Public(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsValid() || a.Zone() != "" || a.Is6() && !unicast.Contains(a) {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}
