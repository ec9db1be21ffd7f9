package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"regexp"

	"github.com/vancetope/mcp-lease-gateway/internal/headers"
)

var operatorForm = regexp.MustCompile(`^[\p{L}\p{N}._@\\+ -]{1,128}$`)

// ValidOperator reports whether a name can stand in headers.Operator.
func ValidOperator(name string) bool { return operatorForm.MatchString(name) }

// named adds to a credential who says to act with it. What is no name is left out.
func named(credential string, r *http.Request) string {
	said := r.Header.Values(headers.Operator)
	if len(said) != 1 || !ValidOperator(said[0]) {
		return credential
	}
	return credential + " (" + said[0] + ")"
}

// Refusals of a credential. Their text goes to the caller.
var (
	// ErrNoCredential means that the request has none: 401.
	ErrNoCredential = errors.New("no credential: send the internal token in X-Vance-Internal-Token, or a key in Authorization: Bearer")
	// errNoKey is ErrNoCredential where a tenant's admin asks: the internal token
	// is not taken there and must not be sent.
	errNoKey = errors.New("no credential: send a tenant admin's key in Authorization: Bearer or X-API-Key")
	// ErrWrongCredential means that the credential is nobody's: 401.
	ErrWrongCredential = errors.New("the credential is not one of this gateway's")
	// ErrNotConfigured means that no secret is configured, so that everyone is
	// refused: 403.
	ErrNotConfigured = errors.New("no internal token is configured (internal.tokens in gateway.yaml), so nobody may call this")
	// ErrForbidden means that the credential is known and may not do this: 403.
	ErrForbidden = errors.New("the credential has not the role that this needs")
)

// InternalToken checks r's internal token against those configured, in constant
// time: nil, ErrNoCredential, ErrWrongCredential or, without any configured,
// ErrNotConfigured. A header that stands twice is wrong.
func InternalToken(r *http.Request, configured []string) error {
	sent := r.Header.Values(headers.InternalToken)
	usable := 0
	match := 0
	var got [sha256.Size]byte
	if len(sent) == 1 {
		got = sha256.Sum256([]byte(sent[0]))
	}
	for _, t := range configured {
		if t == "" {
			continue // an empty token opens nothing
		}
		usable++
		want := sha256.Sum256([]byte(t))
		match |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	switch {
	case usable == 0:
		return ErrNotConfigured
	case len(sent) == 0 || len(sent) == 1 && sent[0] == "":
		return ErrNoCredential
	case len(sent) > 1 || match == 0:
		return ErrWrongCredential
	}
	return nil
}
