package wire

import "encoding/json"

// Answer is a server's response to one request.
type Answer struct {
	Message []byte          // the whole response, as it came
	Result  json.RawMessage // nil where the response is an error
	Error   json.RawMessage // nil where it is none; "error": null is none
}

// ReadAnswer looks in what a server has said, one message or a batch, for the
// response to the request with this id (see [MatchKey]). An error without an id
// counts: so a server answers what it could not read. With a result and an error
// both, the error counts, as most clients have it.
func ReadAnswer(body, id []byte) (a Answer, ok bool) {
	env, err := ScanServer(body)
	if err != nil {
		return a, false
	}
	for i := range env.Messages {
		m := &env.Messages[i]
		if !m.Response() {
			continue
		}
		failed := !m.Error.None() && string(m.Error.Of(body)) != "null"
		nobodys := m.ID.None() || string(m.ID.Of(body)) == "null"
		switch {
		case failed && (nobodys || AnswersID(id, m.ID.Of(body))):
			return Answer{Message: m.All.Of(body), Error: m.Error.Of(body)}, true
		case !failed && !m.Result.None() && !nobodys && AnswersID(id, m.ID.Of(body)):
			return Answer{Message: m.All.Of(body), Result: m.Result.Of(body)}, true
		}
	}
	return a, false
}
