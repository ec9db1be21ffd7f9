package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// maxInitAnswer bounds an answer to initialize, which is read before it is
// passed on: no header may go out before it is known to be a success.
const maxInitAnswer = 4 << 20

var (
	errNoResult    = errors.New("session: not a result of initialize")
	errInitTimeout = errors.New("session: initialize took too long")
	errGivenUp     = errors.New("session: the client has gone before it had the answer to its initialize")
)

// initialize opens the upstream session within initTimeoutSeconds.
func (o *opening) initialize() *refusal {
	q, x := o.q, o.x
	timer := time.AfterFunc(q.doc.InitTimeout, func() { x.Cancel(errInitTimeout) })
	defer timer.Stop()
	var f *refusal
	switch q.doc.Transport {
	case server.Stdio:
		f = o.startChild()
	case server.SSE:
		f = o.startStream()
	}
	if f != nil {
		return f
	}
	u := q.toUpstream(&o.hold)
	u.header, u.body = o.header, o.init
	resp, err := o.send(u)
	if err != nil {
		return o.failed(err)
	}
	o.answer = &initAnswer{resp: resp, body: resp.Body}
	if f := o.usable(); f != nil {
		_ = resp.Body.Close()
		return f
	}
	return nil
}

// send sends the initialize. One to a server of its own, which does not end with
// this process, goes on where its time is over.
func (o *opening) send(u upstreamRequest) (*http.Response, error) {
	if u.via != nil {
		return o.q.p.send(o.x.Context(), u)
	}
	return o.q.sendInitialize(o.x.Context(), u)
}

func (o *opening) failed(err error) *refusal {
	q, x := o.q, o.x
	if l := lossOf(x.Context()); l != nil {
		return lostAtOpen(l.reason)
	}
	switch cause := context.Cause(x.Context()); {
	case errors.Is(cause, errInitTimeout):
		return q.slowInit()
	case errors.Is(cause, errGivenUp):
		return &refusal{form: silent}
	case o.childEnded():
		return o.endedEarly()
	}
	return q.failed(x, err)
}

func (o *opening) childEnded() bool {
	if o.hold.child == nil {
		return false
	}
	select {
	case <-o.hold.child.bridge.Gone():
		return true
	default:
		return false
	}
}

func (o *opening) endedEarly() *refusal {
	if o.q.doc.Transport == server.SSE {
		return upstreamDown(o.q.server, "it closed its event stream before it answered initialize")
	}
	return upstreamDown(o.q.server, "its program ended before it answered initialize; the gateway's log says why")
}

// slowInit refuses an open whose upstream took longer than its document allows.
func (q *request) slowInit() *refusal {
	return upstreamDown(q.server, fmt.Sprintf("it did not answer initialize within initTimeoutSeconds (%.0f s)", q.doc.InitTimeout.Seconds()))
}

// usable reads the answer to initialize and says what is wrong with it.
func (o *opening) usable() *refusal {
	q, a := o.q, o.answer
	// It may have opened a session and say something else than its result, whatever
	// the status: an id that it names is one that it keeps.
	id := upstream.SessionID(a.resp.Header.Get(upstream.HeaderSession))
	if !id.Valid() {
		return upstreamDown(q.server, "its session id is not visible ASCII of at most 16 KiB")
	}
	o.hold.upstream = id
	if q.doc.Transport == server.Stdio && a.resp.StatusCode == http.StatusNotFound || o.childEnded() {
		return o.endedEarly()
	}
	if why := unusable(a.resp, q.doc.Auth.Type == "forward", true); why != "" {
		return upstreamDown(q.server, why)
	}
	if a.resp.StatusCode >= 400 && kindOf(a.resp.Header) != jsonBody {
		return upstreamDown(q.server, fmt.Sprintf("it answered HTTP %d", a.resp.StatusCode))
	}
	if o.hold.child != nil && kindOf(a.resp.Header) == eventStream {
		o.begin()
	}
	env, err := wire.Scan(o.init.B)
	if err != nil {
		return scanRefusal(err)
	}
	err = a.read(env.One().ID.Of(o.init.B))
	switch {
	case err == nil:
	case errors.Is(err, errNoResult), errors.Is(err, wire.ErrEventTooLarge):
		return upstreamDown(q.server, "its answer to initialize is not a JSON-RPC result")
	default:
		return o.failed(err)
	}
	if a.resp.StatusCode >= 300 && !a.refused {
		return upstreamDown(q.server, fmt.Sprintf("it answered HTTP %d", a.resp.StatusCode))
	}
	o.hold.version = a.version
	return nil
}

// initAnswer is an upstream's answer to initialize.
type initAnswer struct {
	resp    *http.Response
	raw     []byte // what has been read of the body
	rest    io.Reader
	body    io.Closer
	version string
	refused bool // a JSON-RPC error
}

// read reads the answer up to the message that answers id.
func (a *initAnswer) read(id []byte) error {
	if kindOf(a.resp.Header) == jsonBody {
		b, err := io.ReadAll(io.LimitReader(a.resp.Body, maxInitAnswer+1))
		if err != nil {
			return err
		}
		if len(b) > maxInitAnswer {
			return errNoResult
		}
		a.raw, a.rest = b, strings.NewReader("")
		if !a.takes(b, id) {
			return errNoResult
		}
		return nil
	}
	events := wire.NewEventReader(a.resp.Body, maxInitAnswer)
	for {
		ev, err := events.Next()
		if errors.Is(err, io.EOF) {
			return errNoResult
		}
		if err != nil {
			return err
		}
		a.raw = append(a.raw, ev.Raw...)
		if len(a.raw) > maxInitAnswer {
			return errNoResult
		}
		if a.takes(ev.Data, id) {
			a.rest = events.Rest()
			return nil
		}
	}
}

// takes notes the result if the message answers id.
func (a *initAnswer) takes(message, id []byte) bool {
	answer, ok := wire.ReadAnswer(message, id)
	if !ok {
		return false
	}
	if answer.Error != nil {
		a.refused = true
		return true
	}
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if json.Unmarshal(answer.Result, &result) != nil || result.ProtocolVersion == "" || len(result.ProtocolVersion) > 64 {
		return false
	}
	a.version = result.ProtocolVersion
	return true
}
