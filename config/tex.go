package config

import (
	"regexp"
	"time"
)

// TexService is one upstream compile service, a preset or described in full.
type TexService struct {
	Name     string
	Preset   string
	Upstream string // base URL
	Auth     Auth
	Mode     string // job | sync
	Submit   TexRoute
	Poll     TexRoute
	Result   TexRoute
	Cancel   TexRoute
	// Other are further routes that need no lease: logs, word counts.
	Other []TexRoute
	// Owned names the places of paths, besides {job}, that name a thing of one
	// owner; whoever uses one first has it.
	Owned     []string
	Abandoned Abandoned
	Busy      TexAnswer
	Lost      TexAnswer
	MaxUpload int64
	HoldMax   time.Duration
	Timeout   time.Duration // longest silence of the upstream
	Unmatched string        // reject | passThrough
}

// Auth is a credential for an upstream.
type Auth struct {
	Type         string // bearer | basic | apiKey | oauth2 | forward | none
	Token        string
	User         string
	Password     string
	HeaderName   string
	Value        string
	TokenURL     string
	ClientID     string
	ClientSecret string
	Scopes       []string
	Audience     string
}

// TexRoute matches requests and reads their answers.
type TexRoute struct {
	Methods  []string
	Path     string // see TexPath; empty means the service has no such route
	Accepted []int
	JobID    []TexPick
	Terminal []TexEnd
}

// TexPick takes a text out of an answer: a JSON pointer or a header, and then a
// group of a regular expression.
type TexPick struct {
	JSON   string
	Header string
	Regex  *regexp.Regexp
}

// TexEnd recognises an answer that ends a job. All conditions that are set must
// hold.
type TexEnd struct {
	JSON    string         // pointer
	In      []string       // values that it may have
	Absent  bool           // the pointer leads nowhere, or the answer is not JSON
	Header  string         // a header that is there
	Regex   *regexp.Regexp // and what it looks like
	Status  []int
	Outcome string // ok | error | gone
}

// Abandoned says what happens to a job that nobody polls.
type Abandoned struct {
	Mode  string // watch | expire
	Every time.Duration
	Max   time.Duration
}

// TexAnswer is a fixed answer; {job}, {message}, {retryAfter} (seconds) and
// {data} (a JSON object with code, resource, level, …) are filled in. JSON is the
// body's text, also where ContentType says that it is something else.
type TexAnswer struct {
	Status      int
	JSON        string
	ContentType string // application/json where empty
}
