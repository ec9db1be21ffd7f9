package identity_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
)

type member map[string]any

func certificateOf(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	tpl := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "id.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func public(t *testing.T, key *ecdsa.PrivateKey, kid string, more member) member {
	t.Helper()
	raw, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	m := member{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": kid,
		"x": base64.RawURLEncoding.EncodeToString(raw[1:33]), "y": base64.RawURLEncoding.EncodeToString(raw[33:])}
	for k, v := range more {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	return m
}

// TestOddKeysOfAProviderLockNobodyOut signs with the key "good" of a set.
func TestOddKeysOfAProviderLockNobodyOut(t *testing.T) {
	good, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der := certificateOf(t, good)
	sum := sha1.Sum(der)
	x5c := []string{base64.StdEncoding.EncodeToString(der)}
	key := func(more member) member { return public(t, good, "good", more) }
	odd := func(more member) member { return public(t, other, "odd", more) }
	tests := map[string]struct {
		keys    []any
		refused bool
		says    []string // the log; none: it says nothing
	}{
		"one key":                                       {[]any{key(nil)}, false, nil},
		"its thumbprint in hexadecimal":                 {[]any{key(member{"x5c": x5c, "x5t": base64.RawURLEncoding.EncodeToString([]byte(strings.ToUpper(hex.EncodeToString(sum[:]))))})}, false, nil},
		"its thumbprint a number":                       {[]any{key(member{"x5t": 7, "x5t#S256": []int{1}})}, false, nil},
		"an address of its certificate over plain http": {[]any{key(member{"x5u": "http://id.example/c"})}, false, nil},
		"its certificate in PEM":                        {[]any{key(member{"x5c": []string{"-----BEGIN CERTIFICATE-----"}})}, false, nil},
		"beside a key of another use":                   {[]any{odd(member{"use": "tls"}), key(nil)}, false, []string{"kid=odd", "use"}},
		"beside a key for encryption of its own id":     {[]any{public(t, other, "good", member{"use": "enc"}), key(nil)}, false, []string{"kid=good", "its use is enc"}},
		"beside a key that may only sign":               {[]any{odd(member{"key_ops": []string{"sign"}}), key(nil)}, false, []string{"kid=odd", "verify"}},
		"beside a key without a member":                 {[]any{odd(member{"x": nil}), key(nil)}, false, []string{"kid=odd"}},
		"beside a key with a member of another type":    {[]any{odd(member{"x": 7}), key(nil)}, false, []string{"kid=odd"}},
		"beside a key off the curve":                    {[]any{odd(member{"x": strings.Repeat("A", 43)}), key(nil)}, false, []string{"kid=odd"}},
		"beside a key with a certificate of another":    {[]any{odd(member{"x5c": x5c}), key(nil)}, false, []string{"kid=odd"}},
		"beside a key of an unknown type":               {[]any{member{"kty": "AKP", "alg": "ML-DSA-65", "kid": "pq", "pub": "AAAA"}, key(nil)}, false, []string{"kid=pq"}},
		"beside a key without a type":                   {[]any{member{"kid": "bare"}, key(nil)}, false, []string{"kid=bare"}},
		"beside a symmetric key":                        {[]any{member{"kty": "oct", "kid": "shared", "k": "AAAA"}, key(nil)}, false, []string{"kid=shared", "symmetric"}},
		"beside a key for another algorithm":            {[]any{odd(member{"alg": "ECDH-ES"}), key(nil)}, false, []string{"kid=odd"}},
		"beside a key with a number for an id":          {[]any{odd(member{"kid": 7}), key(nil)}, false, []string{`kid=""`}},
		"beside what is no object":                      {[]any{"a key", 7, nil, []any{}, key(nil)}, false, []string{"it is not an object"}},
		"beside a hundred odd keys":                     {append(many(100, member{"kty": "?"}), key(nil)), false, []string{"more keys", "keys=90"}},
		"no usable key":                                 {[]any{odd(member{"use": "enc"})}, true, []string{"kid=odd", "no usable key"}},
		"no key":                                        {[]any{}, true, []string{"no usable key"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(member{"keys": tt.keys})
			}))
			defer srv.Close()
			var log bytes.Buffer
			a := authenticator(t, identity.Options{Identity: (&provider{Server: srv}).conf(), Log: slog.New(slog.NewTextHandler(&log, nil))})
			tok := jwt.NewWithClaims(jwt.SigningMethodES256, claims(nil))
			tok.Header["kid"] = "good"
			raw, err := tok.SignedString(good)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Authenticate(request(t, "Authorization: Bearer "+raw)); (err != nil) != tt.refused {
				t.Errorf("%v\n%s", err, log.String())
			}
			if tt.says == nil && log.Len() > 0 || strings.Count(log.String(), "\n") > 13 {
				t.Errorf("the log says %s", log.String())
			}
			for _, want := range tt.says {
				if !strings.Contains(log.String(), want) {
					t.Errorf("no %q in the log:\n%s", want, log.String())
				}
			}
		})
	}
}

func many(n int, m member) (out []any) {
	for range n {
		out = append(out, m)
	}
	return out
}
