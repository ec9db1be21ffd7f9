package peers

import (
	"fmt"
	"net/http"
	"time"

	"crypto/sha256"

	"github.com/vancetope/mcp-lease-gateway/internal/headers"
)

// SignAt signs a call without a body as if it were another time.
func SignAt(r *http.Request, token, pod string, at time.Time) {
	s := signed{method: r.Method, path: r.URL.Path, pod: pod, at: at, digest: sha256.Sum256(nil)}
	r.Header.Set(podHeader, pod)
	r.Header.Set(headers.Signature, fmt.Sprintf("%s %d %d %x %x", signatureVersion, at.UnixMilli(), 0, s.digest, s.mac(signingKey(token))))
}
