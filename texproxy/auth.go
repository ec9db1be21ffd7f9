package texproxy

import (
	"fmt"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// authorizer puts a service's credential on a request. It is the gateway's own:
// abandoned jobs are polled when no caller is there to lend one.
type authorizer func(h http.Header)

func newAuthorizer(a config.Auth) (authorizer, error) {
	switch a.Type {
	case "", "none":
		return func(http.Header) {}, nil
	case "bearer":
		return func(h http.Header) { h.Set("Authorization", "Bearer "+a.Token) }, nil
	case "basic":
		return func(h http.Header) {
			r := http.Request{Header: h}
			r.SetBasicAuth(a.User, a.Password)
		}, nil
	case "apiKey":
		if a.HeaderName == "" {
			return nil, &config.TexError{Key: "auth.headerName", What: "is missing"}
		}
		return func(h http.Header) { h.Set(a.HeaderName, a.Value) }, nil
	}
	return nil, &config.TexError{Key: "auth.type", What: fmt.Sprintf("%q is not bearer, basic, apiKey or none", a.Type)}
}
