package headers

import (
	"net/http"
	"net/textproto"
	"strings"
)

// withheld says which proxies keep a header from going up and down.
type withheld struct{ up, down Proxy }

type affix struct {
	text string
	withheld
}

var names, prefixes, suffixes = compile()

// compile turns the table into one look-up for each name: exact names, prefixes
// by their bucket, and the few suffixes.
func compile() (exact map[string]withheld, begins [256][]affix, ends []affix) {
	exact = map[string]withheld{}
	for _, r := range table {
		w := withheld{r.up, r.down}
		for _, n := range r.names {
			if text, ok := strings.CutSuffix(n, "*"); ok {
				begins[bucket(text)] = append(begins[bucket(text)], affix{text, w})
			} else if text, ok := strings.CutPrefix(n, "*"); ok {
				ends = append(ends, affix{text, w})
			} else {
				exact[n] = withheld{exact[n].up | r.up, exact[n].down | r.down}
			}
		}
	}
	return exact, begins, ends
}

// bucket parts names by the first letter that tells them apart.
func bucket(name string) byte {
	if len(name) > 2 && name[:2] == "X-" {
		return name[2] | 0x80
	}
	return name[0]
}

// find is on the way of every message: it allocates nothing. A name that stands
// in the table itself belongs to no kind there.
func find(name string) (w withheld) {
	if name == "" {
		return withheld{all, all}
	}
	if w, ok := names[name]; ok {
		return w
	}
	for _, a := range prefixes[bucket(name)] {
		if strings.HasPrefix(name, a.text) {
			w.up, w.down = w.up|a.up, w.down|a.down
		}
	}
	for _, a := range suffixes {
		if strings.HasSuffix(name, a.text) {
			w.up, w.down = w.up|a.up, w.down|a.down
		}
	}
	return w
}

// Up copies to dst what passes of a client's headers in src on the way to an
// upstream of p. What dst has stays: it is the gateway's own. Values are shared
// with src. Keys are canonical, as net/http makes them. Without a User-Agent of the
// client dst has an empty one, since net/http would invent one.
func (p Proxy) Up(dst, src http.Header) {
	named := connectionNames(src)
	for k, v := range src {
		if find(k).up&p == 0 && plain(k) {
			pass(dst, k, v, named)
		}
	}
	if _, ok := dst["User-Agent"]; !ok {
		dst["User-Agent"] = nil
	}
}

// Down copies to dst what passes of the headers of an upstream of p in src on the
// way to a client. What dst has stays: it is the gateway's own. Values are shared
// with src.
func (p Proxy) Down(dst, src http.Header) {
	named := connectionNames(src)
	for k, v := range src {
		if find(k).down&p == 0 {
			pass(dst, k, v, named)
		}
	}
}

// EndToEnd copies to dst what is left of src without the headers of one
// connection: what a pod passes on to another one in a client's name. What dst has
// stays, and values are shared with src.
func EndToEnd(dst, src http.Header) { peers.Down(dst, src) }

func pass(dst http.Header, k string, v []string, named map[string]bool) {
	if named[k] {
		return
	}
	if _, own := dst[k]; !own {
		dst[k] = v
	}
}

// plain reports whether a name has letters, digits and "-" only. Another one does
// not go up: CGI and what follows its ways (WSGI, PHP, Rack) read X_Api_Key as
// X-Api-Key, so that it would pass for a header that is withheld or that the
// gateway sets.
func plain(name string) bool {
	for i := range len(name) {
		if !plainByte[name[i]] {
			return false
		}
	}
	return true
}

var plainByte = func() (t [256]bool) {
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-" {
		t[c] = true
	}
	return t
}()

// connectionNames are the headers that Connection calls hop-by-hop; nil where it
// names none that would pass otherwise.
func connectionNames(h http.Header) map[string]bool {
	var named map[string]bool
	for _, field := range h["Connection"] {
		for name := range strings.SplitSeq(field, ",") {
			name = textproto.TrimString(name)
			if name == "" || strings.EqualFold(name, "keep-alive") || strings.EqualFold(name, "close") {
				continue // by far the most frequent, and no header's
			}
			if named == nil {
				named = map[string]bool{}
			}
			named[http.CanonicalHeaderKey(name)] = true
		}
	}
	return named
}
