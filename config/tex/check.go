package tex

import (
	"errors"
	"fmt"

	"github.com/vancetope/mcp-lease-gateway/config/credential"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// Check complains in d of what is wrong with its services, and completes the
// others in place.
func Check(d *strictyaml.Document, services []Service) {
	names := map[string]bool{}
	for i := range services {
		s, key := &services[i], fmt.Sprintf("tex[%d]", i)
		if s.Name != "" && !principal.ValidName(s.Name) {
			d.Complain(key+".name", "%s", principal.NameForm)
		}
		if s.Name != "" && names[s.Name] {
			d.Complain(key+".name", "another service has this name")
		}
		names[s.Name] = true
		s.check(d, key)
	}
}

func (s *Service) check(d *strictyaml.Document, key string) {
	checkAuth(d, key+".auth", &s.Auth)
	if s.Upstream == "" {
		return // complained of already
	}
	whole, err := s.Complete()
	var wrong *WrongError
	switch {
	case errors.As(err, &wrong):
		d.Complain(key+"."+wrong.Key, "%s", wrong.What)
	case err != nil:
		d.Complain(key, "%s", err.Error())
	default:
		*s = whole
	}
}

func checkAuth(d *strictyaml.Document, key string, a *credential.Auth) {
	switch a.Type {
	case credential.OAuth2:
		d.Complain(key+".type", "TeX services take bearer, basic, apiKey and none; get a static key for the gateway")
		return
	case credential.Forward:
		d.Complain(key+".type", "the gateway polls abandoned jobs with its own key, so a caller's credential is not forwarded to a TeX service; use bearer, basic, apiKey or none")
		return
	}
	for _, p := range a.Check() {
		d.Complain(key+"."+p.Key, "%s", p.What)
	}
}
