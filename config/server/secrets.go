package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config/document"
)

// Secrets reads the files that {{secret:name}} means, secrets/<tenant>/<project>/<name>,
// each time they are used. It knows no cache: a rotated secret counts at once.
type Secrets struct{ dir *document.Dir }

// NewSecrets reads below dir, which need not exist while nothing names a secret.
func NewSecrets(dir string) *Secrets { return &Secrets{document.NewDir(dir)} }

// Lookup finds a secret by the cascade project → tenant → system, as a document
// of layer may: the operator's own secrets are for the operator's documents, or
// a project could name one and have it sent to an address of its choice. The
// error names the secret and never its text.
func (s *Secrets) Lookup(layer document.Layer, tenant, project, name string) (string, error) {
	if !validSecret(name) {
		return "", errors.New("this is not the name of a secret")
	}
	type place struct {
		tenant, project string
		operators       bool
	}
	places := []place{{tenant, project, false}, {tenant, document.TenantProject, false}, {document.SystemTenant, document.TenantProject, true}}
	for _, at := range places {
		system := at.operators || at.tenant == document.SystemTenant && at.project == document.TenantProject
		text, err := s.dir.Read(context.Background(), document.Key{Tenant: at.tenant, Project: at.project, Path: name})
		switch {
		case errors.Is(err, document.ErrNotFound):
			continue
		case err != nil:
			return "", fmt.Errorf("the secret %s cannot be read: %w", name, err)
		case system && !layer.Trusted():
			return "", fmt.Errorf("the secret %s is the operator's, and a %s's document may not use it; put one of its own at <secrets>/<tenant>/<project or _tenant>/%s", name, layer, name)
		}
		return strings.TrimRight(string(text), "\r\n"), nil
	}
	return "", fmt.Errorf("there is no secret %s; put it at <secrets>/<tenant>/<project or _tenant>/%s", name, name)
}

// expand replaces the references in a value of d.
func (s *Secrets) expand(d *Document, value string) (string, error) {
	if !strings.Contains(value, "{{") {
		return value, nil
	}
	if s == nil {
		return "", errors.New("no folder for secrets is configured (documents.secrets)")
	}
	var failed error
	out := secretForm.ReplaceAllStringFunc(value, func(m string) string {
		text, err := s.Lookup(d.Layer, d.Tenant, d.Project, secretForm.FindStringSubmatch(m)[1])
		if err != nil && failed == nil {
			failed = err
		}
		return text
	})
	if failed != nil {
		return "", failed
	}
	return out, nil
}
