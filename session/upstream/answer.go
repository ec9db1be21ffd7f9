package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// Kind is what an answer's Content-Type makes of it.
type Kind uint8

const (
	Other Kind = iota
	JSON
	EventStream
)

func KindOf(h http.Header) Kind {
	ct := h["Content-Type"]
	if len(ct) == 0 {
		return Other
	}
	media, _, _ := strings.Cut(ct[0], ";")
	switch media = strings.TrimSpace(media); {
	case strings.EqualFold(media, "application/json"):
		return JSON
	case strings.EqualFold(media, "text/event-stream"):
		return EventStream
	}
	return Other
}

// Unusable says why an answer is not one of an MCP server; "" where it is.
// waits says that a request waits for a result.
func Unusable(resp *http.Response, forward, waits bool) string {
	s := resp.StatusCode
	switch {
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		return refusedBy(resp, forward)
	case s >= 300 && s < 400:
		return fmt.Sprintf("it answered with a redirect (HTTP %d), and redirects are not followed: put the final address into its document", s)
	case s >= 400 && KindOf(resp.Header) != JSON && !said(resp):
		return fmt.Sprintf("it answered HTTP %d", s)
	case (waits || KindOf(resp.Header) == EventStream) && Compressed(resp.Header):
		return "it compressed its answer, which nobody had asked for"
	case s < 300 && waits && KindOf(resp.Header) == Other:
		return "its answer is neither JSON nor an event stream, so it does not speak MCP at this address"
	}
	return ""
}

// refusedBy quotes an upstream that refuses a request as such. What for is its own
// word: a 403 can be about a credential, or about the name under which it is called.
func refusedBy(resp *http.Response, forward bool) string {
	why := "it refused the gateway's credential"
	switch {
	case resp.StatusCode == http.StatusForbidden:
		why = "it refused the request"
	case forward:
		why = "it refused your own credential"
	}
	why += fmt.Sprintf(" (HTTP %d)", resp.StatusCode)
	prefix, whole := httpbody.Peek(resp.Body)
	resp.Body = whole
	if said := Quote(resp, prefix); said != "" {
		why += " and says: " + said
	}
	return why
}

// Compressed reports whether an answer is not what it says in Content-Type. The
// gateway asks for none, whatever the client takes, since it follows what answers
// and puts comments between events.
func Compressed(h http.Header) bool {
	for _, v := range h["Content-Encoding"] {
		if v = strings.TrimSpace(v); v != "" && !strings.EqualFold(v, "identity") {
			return true
		}
	}
	return false
}

// said reports whether an answer in plain text is the server's own word on this
// request, which passes like one in JSON: go-sdk refuses an unknown method so. A
// 404 or 410 would tell a client that its session is gone.
func said(resp *http.Response) bool {
	switch s := resp.StatusCode; {
	case s < 400 || s >= 500, s == http.StatusNotFound, s == http.StatusGone:
		return false
	}
	ct := resp.Header["Content-Type"]
	if len(ct) == 0 {
		return true
	}
	media, _, _ := strings.Cut(ct[0], ";")
	media = strings.TrimSpace(media)
	return media == "" || strings.EqualFold(media, "text/plain")
}

// maxInitAnswer bounds an answer to initialize, which is read before it is
// passed on: no header may go out before it is known to be a success.
const maxInitAnswer = 4 << 20

// ErrNoResult says that an answer to initialize is none.
var ErrNoResult = errors.New("upstream: not a result of initialize")

// InitAnswer is an upstream's answer to initialize.
type InitAnswer struct {
	Resp    *http.Response
	Raw     []byte // what has been read of the body
	Rest    io.Reader
	Version string
	Refused bool // a JSON-RPC error
}

// Read reads the answer up to the message that answers id.
func (a *InitAnswer) Read(id []byte) error {
	if KindOf(a.Resp.Header) == JSON {
		b, err := io.ReadAll(io.LimitReader(a.Resp.Body, maxInitAnswer+1))
		if err != nil {
			return err
		}
		if len(b) > maxInitAnswer {
			return ErrNoResult
		}
		a.Raw, a.Rest = b, strings.NewReader("")
		if !a.takes(b, id) {
			return ErrNoResult
		}
		return nil
	}
	events := wire.NewEventReader(a.Resp.Body, maxInitAnswer)
	for {
		ev, err := events.Next()
		if errors.Is(err, io.EOF) {
			return ErrNoResult
		}
		if err != nil {
			return err
		}
		a.Raw = append(a.Raw, ev.Raw...)
		if len(a.Raw) > maxInitAnswer {
			return ErrNoResult
		}
		if a.takes(ev.Data, id) {
			a.Rest = events.Rest()
			return nil
		}
	}
}

// takes notes the result if the message answers id.
func (a *InitAnswer) takes(message, id []byte) bool {
	answer, ok := wire.ReadAnswer(message, id)
	if !ok {
		return false
	}
	if answer.Error != nil {
		a.Refused = true
		return true
	}
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if json.Unmarshal(answer.Result, &result) != nil || result.ProtocolVersion == "" || len(result.ProtocolVersion) > 64 {
		return false
	}
	a.Version = result.ProtocolVersion
	return true
}
