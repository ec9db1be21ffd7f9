package lease

import (
	"crypto/rand"
	"strings"
)

// shortToken is how many characters of a token people are shown: enough to tell
// fifty bits of tokens apart, too few to use one.
const shortToken = 10

// Short is what logs, events and pages show of a token. View.Resolve takes it
// back.
func (t Token) Short() string {
	if len(t) > shortToken {
		return string(t[:shortToken])
	}
	return string(t)
}

// identities makes what is never used twice.
type identities interface {
	token() Token
	gen() Gen
}

// randomIdentities takes 130 bits from the system for each.
type randomIdentities struct{}

func (randomIdentities) token() Token { return Token(strings.ToLower(rand.Text())) }
func (randomIdentities) gen() Gen     { return Gen(strings.ToLower(rand.Text()[:16])) }
