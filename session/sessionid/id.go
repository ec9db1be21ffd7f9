package sessionid

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/url"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// ID is a gateway session id as clients see it: sealed, visible ASCII. It opens
// the session to its principal, so logs have its Number, shortened.
type ID string

// Number names a session within the gateway for good, also when its lease and
// its upstream session are replaced by others (onLost: reopen).
type Number [16]byte

// String is the number's beginning, enough for a log line.
func (n Number) String() string { return hex.EncodeToString(n[:4]) }

// LogValue is String: a log that writes values as JSON would spell the bytes out.
func (n Number) LogValue() slog.Value { return slog.StringValue(n.String()) }

// Key is the number as the payload's searchable member.
func (n Number) Key() string { return hex.EncodeToString(n[:]) }

func ParseNumber(key string) (n Number, ok bool) {
	raw, err := hex.DecodeString(key)
	if err != nil || len(raw) != len(n) {
		return n, false
	}
	return Number(raw), true
}

func NewNumber() (n Number) {
	_, _ = rand.Read(n[:]) // never fails on systems that Go supports
	return n
}

// Owner is a principal's fingerprint.
type Owner [16]byte

func OwnerOf(p principal.Principal) Owner {
	sum := sha256.Sum256([]byte(p.ID()))
	return Owner(sum[:16])
}

// Endpoint is the fingerprint of where a session's server stood when it was
// opened. A session id is never sent to another address.
type Endpoint [8]byte

func EndpointOf(u *url.URL) Endpoint {
	if u == nil {
		return Endpoint{}
	}
	sum := sha256.Sum256([]byte(u.String()))
	return Endpoint(sum[:8])
}

// Sealed is the state of a session that its id carries. The route (tenant,
// project, server) is not in it: it is the additional data with which it opens.
type Sealed struct {
	Number    Number
	Owner     Owner
	Endpoint  Endpoint
	Opened    time.Time // whole seconds
	Lease     lease.Ref // zero without a lease
	Upstream  upstream.SessionID
	InPayload bool // Upstream is too long and stands in the lease's payload
	Version   string
	Pod       lease.PodID // stdio: where the child runs
}

// MaxUpstream is the longest upstream session id that goes into an id.
const MaxUpstream = 2 << 10

const sealedForm = 1

var ErrForeign = errors.New("sessionid: not a session id of this gateway")

func Route(tenant, project, server string) []byte {
	return []byte(tenant + "/" + project + "/" + server)
}

func (s *Sealed) Seal(box *seal.Box, route []byte) ID {
	b := make([]byte, 0, 256+len(s.Upstream))
	b = append(b, sealedForm)
	b = append(b, s.Number[:]...)
	b = append(b, s.Owner[:]...)
	b = append(b, s.Endpoint[:]...)
	b = binary.AppendUvarint(b, uint64(s.Opened.Unix()))
	var flags byte
	if s.InPayload {
		flags |= 1
	}
	if s.Lease.PodBound {
		flags |= 2
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(s.Lease.TTL/time.Millisecond))
	for _, t := range []string{string(s.Lease.Token), s.Lease.Type, s.Lease.Label, string(s.Upstream), s.Version, string(s.Pod)} {
		b = binary.AppendUvarint(b, uint64(len(t)))
		b = append(b, t...)
	}
	return ID(box.Seal(b, route))
}

func Open(box *seal.Box, id ID, route []byte) (s Sealed, err error) {
	if len(id) > 32<<10 {
		return s, ErrForeign
	}
	b, err := box.Open(string(id), route)
	if err != nil || len(b) < 1+len(s.Number)+len(s.Owner)+len(s.Endpoint) || b[0] != sealedForm {
		return s, ErrForeign
	}
	b = b[1:]
	b = b[copy(s.Number[:], b):]
	b = b[copy(s.Owner[:], b):]
	b = b[copy(s.Endpoint[:], b):]
	at, n := binary.Uvarint(b)
	if n <= 0 || len(b) < n+1 {
		return s, ErrForeign
	}
	s.Opened = time.Unix(int64(at), 0)
	flags := b[n]
	b = b[n+1:]
	s.InPayload, s.Lease.PodBound = flags&1 != 0, flags&2 != 0
	ttl, n := binary.Uvarint(b)
	if n <= 0 {
		return s, ErrForeign
	}
	b = b[n:]
	s.Lease.TTL = time.Duration(ttl) * time.Millisecond
	var texts [6]string
	all := string(b) // of which the texts are parts
	for i := range texts {
		size, n := binary.Uvarint(b)
		if n <= 0 || uint64(len(b)-n) < size {
			return s, ErrForeign
		}
		b = b[n:]
		from := len(all) - len(b)
		texts[i] = all[from : from+int(size)]
		b = b[size:]
	}
	s.Lease.Token, s.Lease.Type, s.Lease.Label = lease.Token(texts[0]), texts[1], texts[2]
	s.Upstream, s.Version, s.Pod = upstream.SessionID(texts[3]), texts[4], lease.PodID(texts[5])
	return s, nil
}
