package mongostore

import (
	"errors"
	"fmt"
	"strings"
)

// uriError says what is wrong with a connection string. The driver's own text
// can quote a piece of it, and a password with a stray / or : breaks in places
// where no search for it would find it; so the text is shown only where the
// string has nothing to hide.
func uriError(uri string, err error) error {
	const form = "store.uri has the form mongodb://user:password@host:port/?options or mongodb+srv://…"
	switch scheme, rest, ok := strings.Cut(uri, "://"); {
	case !ok || (scheme != "mongodb" && scheme != "mongodb+srv"):
		return errors.New("lease store: the connection string does not begin with mongodb:// or mongodb+srv://: " + form)
	case strings.Count(rest, "@") > 1:
		return errors.New("lease store: the connection string has more than one @; one in a user name or password is written %40: " + form)
	case strings.ContainsAny(rest, "@?"):
		return errors.New("lease store: the connection string cannot be used; check its host, its options, and that /, :, @, ? and % in user name and password are percent-encoded: " + form)
	}
	return fmt.Errorf("lease store: the connection string cannot be used: %w: %s", err, form)
}
