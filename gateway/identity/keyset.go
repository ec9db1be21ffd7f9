package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/MicahParks/jwkset"
)

const (
	maxJWKS = 1 << 20
	// maxKeyLines is how many of a set's odd keys the log names.
	maxKeyLines = 10
	// maxShown bounds what a log line quotes of a provider, in bytes.
	maxShown = 256
)

// keySets fetches the key set of a provider and leaves in it the keys that can
// verify a token, since the library that reads it discards the whole set for one
// odd key. It bounds what a provider can make the gateway read.
type keySets struct {
	next http.RoundTripper
	log  *slog.Logger

	mu   sync.Mutex
	said string // of the last set, so that each fetch does not say it again
}

// RoundTrip implements http.RoundTripper.
func (s *keySets) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxJWKS+1))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	if len(body) > maxJWKS {
		return nil, fmt.Errorf("the key set is longer than %d KiB", maxJWKS>>10)
	}
	usable, odd, err := readKeys(body)
	if err != nil {
		return nil, err
	}
	s.report(r.Context(), r.URL.Redacted(), len(usable), odd)
	body, err = json.Marshal(map[string][]json.RawMessage{"keys": usable})
	if err != nil {
		return nil, err
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, nil
}

// report says once of each set which of its keys do not count. A set without a
// usable key takes the earlier ones away: that is how a provider withdraws them.
func (s *keySets) report(ctx context.Context, url string, usable int, odd []oddKey) {
	text := fmt.Sprint(usable == 0, odd)
	s.mu.Lock()
	same := s.said == text
	s.said = text
	s.mu.Unlock()
	if same {
		return
	}
	for _, k := range odd[:min(len(odd), maxKeyLines)] {
		s.log.LogAttrs(ctx, slog.LevelWarn, "a key of the identity provider does not count",
			slog.String("url", url), slog.String("kid", k.kid), slog.String("why", k.why))
	}
	if left := len(odd) - maxKeyLines; left > 0 {
		s.log.LogAttrs(ctx, slog.LevelWarn, "more keys of the identity provider do not count", slog.String("url", url), slog.Int("keys", left))
	}
	if usable == 0 {
		s.log.LogAttrs(ctx, slog.LevelError, "the identity provider's key set has no usable key, so every token is refused until it has one",
			slog.String("url", url), slog.Int("keys", len(odd)))
	}
}

// oddKey is a key that does not count.
type oddKey struct{ kid, why string }

// readKeys parts a key set into the keys that can verify a token and the others.
// Its error is that the text is no key set at all.
func readKeys(body []byte) (usable []json.RawMessage, odd []oddKey, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, nil, fmt.Errorf("this is no key set: %w", err)
	}
	usable = []json.RawMessage{}
	for _, raw := range set.Keys {
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			odd = append(odd, oddKey{why: "it is not an object"})
			continue
		}
		key, err := readKey(members)
		if err != nil {
			var kid string
			_ = json.Unmarshal(members["kid"], &kid) // one of another form is not shown
			odd = append(odd, oddKey{shown(kid), shown(err.Error())})
			continue
		}
		usable = append(usable, key)
	}
	return usable, odd, nil
}

// readKey returns a key as the library can read it. Thumbprints and addresses of
// certificates prove nothing here and come in several forms, so they go.
func readKey(members map[string]json.RawMessage) (json.RawMessage, error) {
	for _, name := range []string{"x5t", "x5t#S256", "x5u"} {
		delete(members, name)
	}
	key, err := parseKey(members)
	if _, has := members["x5c"]; err != nil && has && !errors.Is(err, jwkset.ErrX509Mismatch) {
		// A certificate that cannot be read says nothing against its key; one of
		// another key does.
		delete(members, "x5c")
		key, err = parseKey(members)
	}
	return key, err
}

func parseKey(members map[string]json.RawMessage) (json.RawMessage, error) {
	raw, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	key, err := jwkset.NewJWKFromRawJSON(raw, jwkset.JWKMarshalOptions{Private: true}, jwkset.JWKValidateOptions{})
	if err != nil {
		return nil, err
	}
	m := key.Marshal()
	switch {
	case m.USE != "" && m.USE != jwkset.UseSig:
		return nil, fmt.Errorf("its use is %s, not sig", m.USE)
	case len(m.KEYOPS) > 0 && !slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify):
		return nil, errors.New("its key_ops do not have verify")
	case m.KTY == jwkset.KtyOct:
		return nil, errors.New("it is symmetric: whoever can verify with it can sign")
	case m.ALG != "" && !slices.Contains(methods, m.ALG.String()):
		return nil, fmt.Errorf("no token may be signed with its algorithm, %s", m.ALG)
	}
	return raw, nil
}

// shown is what a log line quotes of a provider.
func shown(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
