package config

import (
	"regexp"
	"time"
)

// TexService is one upstream compile service, a preset or described in full. What
// a preset says holds where the file says nothing; see Complete.
type TexService struct {
	// Name in URLs: /tex/{tenant}/{project}/{name}/.
	Name string `yaml:"name" required:"true"`
	// rbehzadan, clsi, latex-on-http, latex-online, latexcgi, texd, arxiv or
	// typst; without one the service is described here.
	Preset string `yaml:"preset"`
	// Base URL of the service.
	Upstream string `yaml:"upstream" required:"true"`
	// The gateway's own credential for it.
	Auth Auth `yaml:"auth"`
	// job: submit, poll, download. sync: one request, one answer.
	Mode string `yaml:"mode" enum:"job,sync"`
	// The request that begins a compile.
	Submit TexRoute `yaml:"submit"`
	// The request that asks how a job is.
	Poll TexRoute `yaml:"poll"`
	// The request that fetches a result; it needs no lease.
	Result TexRoute `yaml:"result"`
	// The request that ends a compile early, where the service has one.
	Cancel TexRoute `yaml:"cancel"`
	// Other are further routes that need no lease: logs, word counts.
	Other []TexRoute `yaml:"other"`
	// Owned names the places of paths, besides {job}, that name a thing of one
	// owner; whoever uses one first has it.
	Owned []string `yaml:"owned"`
	// What happens to a job that nobody polls.
	Abandoned Abandoned `yaml:"abandoned"`
	// What a refused client sees.
	Busy TexAnswer `yaml:"busy"`
	// What the client of a lost lease sees.
	Lost TexAnswer `yaml:"lost"`
	// Longest upload.
	MaxUpload int64 `yaml:"maxUpload" form:"size" default:"50MiB" min:"1024"`
	// Longest time that one job or request may keep a lease.
	HoldMax time.Duration `yaml:"hold.max" default:"600s" min:"1s" max:"24h"`
	// Longest silence of the upstream; the default is 60s in job mode and
	// hold.max in sync mode.
	Timeout time.Duration `yaml:"timeout" min:"100ms" max:"24h"`
	// reject answers paths that no route matches with 404; passThrough sends
	// them up without a lease.
	Unmatched string `yaml:"unmatched" default:"reject" enum:"reject,passThrough"`
}

// Auth is a credential for an upstream.
type Auth struct {
	// bearer{token} | basic{user,password} | apiKey{headerName,value} |
	// oauth2{tokenURL,clientID,clientSecret,scopes,audience} | forward | none.
	// Server documents take all of them, TeX services bearer, basic, apiKey and
	// none.
	Type AuthType `yaml:"type" default:"none" enum:"bearer,basic,apiKey,oauth2,forward,none"`
	// bearer: what stands behind "Bearer " in Authorization.
	Token string `yaml:"token" secret:"true"`
	// basic: the user.
	User string `yaml:"user"`
	// basic: the password.
	Password string `yaml:"password" secret:"true"`
	// apiKey: the header that carries the key.
	HeaderName string `yaml:"headerName"`
	// apiKey: the key.
	Value string `yaml:"value" secret:"true"`
	// oauth2: where tokens are had by client credentials.
	TokenURL string `yaml:"tokenURL"`
	// oauth2: the client.
	ClientID string `yaml:"clientID"`
	// oauth2: its secret.
	ClientSecret string `yaml:"clientSecret" secret:"true"`
	// oauth2: scopes to ask for.
	Scopes []string `yaml:"scopes"`
	// oauth2: audience to ask for, where the provider wants one.
	Audience string `yaml:"audience"`
}

// TexRoute matches requests and reads their answers.
type TexRoute struct {
	// Methods that match.
	Methods []string `yaml:"match.methods"`
	// Path below the base URL, see TexPath; empty means the service has no such
	// route.
	Path string `yaml:"match.path"`
	// Statuses of an accepted submit; any other ends the compile there.
	Accepted []int `yaml:"accepted" min:"200" max:"399"`
	// Where an accepted answer names its job; the first hit counts.
	JobID []TexPick `yaml:"jobId"`
	// Answers that end a job.
	Terminal []TexEnd `yaml:"terminal"`
}

// TexPick takes a text out of an answer: a JSON pointer or a header, and then a
// group of a regular expression.
type TexPick struct {
	// JSON pointer, such as /job_id.
	JSON string `yaml:"json"`
	// Header, such as Location.
	Header string `yaml:"header"`
	// What of it is the id: the first group.
	Regex *regexp.Regexp `yaml:"regex"`
}

// TexEnd recognises an answer that ends a job. All conditions that are set must
// hold.
type TexEnd struct {
	// JSON pointer to a value.
	JSON string `yaml:"json"`
	// Values that it may have.
	In []string `yaml:"in"`
	// The pointer leads nowhere, or the answer is not JSON.
	Absent bool `yaml:"absent"`
	// A header that is there.
	Header string `yaml:"header"`
	// What the header looks like.
	Regex *regexp.Regexp `yaml:"regex"`
	// Statuses of the answer.
	Status []int `yaml:"status" min:"100" max:"599"`
	// How the job has ended.
	Outcome string `yaml:"outcome" required:"true" enum:"ok,error,gone"`
}

// Abandoned says what happens to a job that nobody polls.
type Abandoned struct {
	// watch: the gateway polls it until it ends, so the slot counts compiles.
	// expire: the slot is free after the lease's TTL.
	Mode string `yaml:"mode" default:"watch" enum:"watch,expire"`
	// How often it is polled.
	Every time.Duration `yaml:"every" default:"10s" min:"100ms" max:"1h"`
	// For how long.
	Max time.Duration `yaml:"max" default:"300s" min:"1s" max:"24h"`
}

// TexAnswer is a fixed answer; {job}, {message}, {retryAfter} (seconds) and
// {data} (a JSON object with code, resource, level, …) are filled in. JSON is the
// body's text, also where ContentType says that it is something else.
type TexAnswer struct {
	// HTTP status.
	Status int `yaml:"status" min:"200" max:"599"`
	// Body.
	JSON string `yaml:"json"`
	// Content-Type; application/json where empty.
	ContentType string `yaml:"contentType"`
}
