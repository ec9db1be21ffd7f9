package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// The paths of pod-to-pod calls, all POST.
const (
	RevokedPath = "/internal/lease/revoked"
	ForwardPath = "/internal/session/forward"
	ChangedPath = "/internal/document/changed"
)

const (
	// podHeader names the pod that a call means.
	podHeader = "X-Vance-Pod"
	// relayedHeader marks an answer as the forwarded request's own, so that a
	// refusal of the pod itself is never taken for it.
	relayedHeader = "X-Vance-Relayed"
	// proofHeader shows that whoever answers has the internal token.
	proofHeader = "X-Vance-Proof"
)

// Bounds of what a pod reads, in bytes.
const (
	maxRevoked  = 4 << 10
	maxEnvelope = 256 << 10
)

// sealPurpose is the purpose of the envelope's keys.
const sealPurpose = "peers"

// revoked is the body of RevokedPath.
type revoked struct {
	Pod   lease.PodID `json:"pod"`
	Token lease.Token `json:"token"`
}

// envelope is what is sealed in front of a forwarded body: who asks, and the
// request as the first pod got it. It is sealed because it carries the caller's
// own credential where the server forwards it, and bound to the pod it is for.
type envelope struct {
	Tenant        string           `json:"tenant"`
	Project       string           `json:"project"`
	User          string           `json:"user,omitempty"`
	Issuer        string           `json:"issuer"`
	OnLost        principal.OnLost `json:"onLost,omitempty"`
	Authorization string           `json:"authorization,omitempty"`
	Server        string           `json:"server"`
	Method        string           `json:"method"`
	URI           string           `json:"uri"`
	Host          string           `json:"host"`
	Remote        string           `json:"remote"`
	Header        http.Header      `json:"header"`
	SentUnixMs    int64            `json:"sent"`
}

func (e envelope) caller() principal.Caller {
	return principal.Caller{
		Principal:     principal.Principal{Tenant: e.Tenant, Project: e.Project, User: e.User, Issuer: e.Issuer},
		OnLost:        e.OnLost,
		Authorization: principal.Secret(e.Authorization),
	}
}

// envelopeData binds a sealed envelope to the pod that it is for.
func envelopeData(pod lease.PodID) []byte { return []byte("pod:" + string(pod)) }

// decode reads one JSON value of at most limit bytes, strictly.
func decode(w http.ResponseWriter, r *http.Request, limit int64, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("the body cannot be read: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body has more than one value")
	}
	return nil
}
