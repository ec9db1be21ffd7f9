package peers

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/headers"
)

// maxSkew is how far the clocks of two pods may be apart, and so how long a call
// that somebody has recorded is good for the pod that it names.
const maxSkew = time.Minute

const (
	signatureVersion = "v1"
	signaturePurpose = "mcp-lease-gateway/peers"
)

// Why a signature is refused. The texts go to the caller.
var (
	errSignature = errors.New("the signature of the call is not one of a pod with this pod's internal token")
	errSkew      = fmt.Errorf("the call is signed for a time more than %s from this pod's; are the pods' clocks together?", maxSkew)
)

// signingKey makes the key of an internal token. The token itself is not sent to
// other pods: their addresses stand in the store, and whoever can write it there
// would be sent what opens every pod.
func signingKey(token string) []byte {
	key, err := hkdf.Key(sha256.New, []byte(token), nil, signaturePurpose, sha256.Size)
	if err != nil {
		panic(err) // it fails only on sizes, and this one is a constant
	}
	return key
}

// signed is what a signature is for: one call, with its body, to one pod, at one
// time.
type signed struct {
	method, path, pod string
	at                time.Time
	length            int64
	digest            [sha256.Size]byte
}

func (s signed) mac(key []byte) []byte {
	m := hmac.New(sha256.New, key)
	// No part can hold a line break: they stand in a request line and in headers.
	fmt.Fprintf(m, "%s\n%s\n%s\n%s\n%d\n%d\n%x", signatureVersion, s.method, s.path, s.pod, s.at.UnixMilli(), s.length, s.digest)
	return m.Sum(nil)
}

// proof is what whoever answers a call shows for having the same token.
func proof(key, mac []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("answer\n"))
	m.Write(mac)
	return hex.EncodeToString(m.Sum(nil))
}

// sign signs a call whose body has these parts, and returns the proof that its
// answer must bear.
func sign(r *http.Request, key []byte, pod string, parts ...[]byte) (proofOf string) {
	s := signed{method: r.Method, path: r.URL.Path, pod: pod, at: time.Now()}
	h := sha256.New()
	for _, part := range parts {
		h.Write(part)
		s.length += int64(len(part))
	}
	h.Sum(s.digest[:0])
	mac := s.mac(key)
	r.Header.Set(headers.Signature, fmt.Sprintf("%s %d %d %x %x", signatureVersion, s.at.UnixMilli(), s.length, s.digest, mac))
	return proof(key, mac)
}

// Verifier checks the signatures of other pods' calls. It is safe for concurrent
// use.
type Verifier struct{ keys [][]byte }

// NewVerifier takes the internal tokens: calls that are signed with any of them
// are taken.
func NewVerifier(tokens []string) *Verifier {
	v := &Verifier{}
	for _, t := range tokens {
		if t != "" {
			v.keys = append(v.keys, signingKey(t))
		}
	}
	return v
}

// Verify checks a call before its body is read; from then on the body ends with
// an error where it is not the one that was signed. It puts the proof that this
// pod has the token into w's headers. Which pod the call names is judged by who
// serves it.
func (v *Verifier) Verify(w http.ResponseWriter, r *http.Request) error {
	fields, pods := strings.Fields(r.Header.Get(headers.Signature)), r.Header.Values(podHeader)
	if len(r.Header.Values(headers.Signature)) != 1 || len(fields) != 5 || fields[0] != signatureVersion || len(pods) != 1 {
		return errSignature
	}
	ms, err1 := strconv.ParseInt(fields[1], 10, 64)
	length, err2 := strconv.ParseInt(fields[2], 10, 64)
	digest, err3 := hex.DecodeString(fields[3])
	mac, err4 := hex.DecodeString(fields[4])
	if errors.Join(err1, err2, err3, err4) != nil || len(digest) != sha256.Size {
		return errSignature
	}
	s := signed{method: r.Method, path: r.URL.Path, pod: pods[0], at: time.UnixMilli(ms), length: length, digest: [sha256.Size]byte(digest)}
	var key []byte
	for _, k := range v.keys {
		if hmac.Equal(s.mac(k), mac) {
			key = k
		}
	}
	if key == nil {
		return errSignature
	}
	if age := time.Since(s.at); age > maxSkew || age < -maxSkew {
		return errSkew
	}
	w.Header().Set(proofHeader, proof(key, mac))
	r.Body = &signedBody{ReadCloser: r.Body, signed: s, hash: sha256.New()}
	return nil
}

// signedBody reads a body that must be the one that was signed.
type signedBody struct {
	io.ReadCloser
	signed signed
	hash   hash.Hash
	read   int64
}

var errBody = errors.New("the body is not the one that was signed")

func (b *signedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.hash.Write(p[:n])
	b.read += int64(n)
	if b.read > b.signed.length {
		return 0, errBody
	}
	if err == io.EOF && (b.read != b.signed.length || [sha256.Size]byte(b.hash.Sum(nil)) != b.signed.digest) {
		return 0, errBody
	}
	return n, err
}
