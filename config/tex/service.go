package tex

import (
	"regexp"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/credential"
)

// NoLease, as a setting or in gateway.yaml, says that compiles need no lease.
const NoLease = "none"

// Mode is how a service gives its result.
type Mode string

// In Job mode a client submits, polls and downloads in requests of their own; in
// Sync mode one request is one compile.
const (
	Job  Mode = "job"
	Sync Mode = "sync"
)

// Abandonment is what happens to a job that nobody polls.
type Abandonment string

// Watch has the gateway poll it until it ends; Expire leaves it to the lease's
// TTL.
const (
	Watch  Abandonment = "watch"
	Expire Abandonment = "expire"
)

// Unmatched is what happens to a path that no route matches.
type Unmatched string

// The two ways.
const (
	Reject      Unmatched = "reject"
	PassThrough Unmatched = "passThrough"
)

// Outcome is how a job has ended. It is a label of a metric.
type Outcome string

// The outcomes that a description may name.
const (
	OK    Outcome = "ok"
	Error Outcome = "error"
	Gone  Outcome = "gone"
)

// Service is one upstream compile service, a preset or described in full. What
// a preset says holds where the file says nothing; see Complete.
type Service struct {
	// Name in URLs: /tex/{tenant}/{project}/{name}/.
	Name string `yaml:"name" required:"true"`
	// rbehzadan; without one the service is described here.
	Preset string `yaml:"preset"`
	// Base URL of the service.
	Upstream string `yaml:"upstream" required:"true"`
	// The gateway's own credential for it.
	Auth credential.Auth `yaml:"auth"`
	// The lease of its compiles, or none; the default is what the setting
	// tex.lease names. Said here it is the operator's, and no setting changes it.
	Lease string `yaml:"lease"`
	// A tenant or project whose setting tex.lease is none or empty compiles
	// without the lease that is said here.
	Optional bool `yaml:"optional"`
	// job: submit, poll, download. sync: one request, one answer.
	Mode Mode `yaml:"mode" enum:"job,sync"`
	// The requests that begin a compile: one route, or a list of them.
	Submit []Route `yaml:"submit" form:"some"`
	// The request that asks how a job is.
	Poll Route `yaml:"poll"`
	// The request that fetches a result; it needs no lease.
	Result Route `yaml:"result"`
	// The request that ends a compile early, where the service has one.
	Cancel Route `yaml:"cancel"`
	// Other are further routes that need no lease: logs, word counts.
	Other []Route `yaml:"other"`
	// Owned names the places of paths, besides {job}, that name a thing of one
	// owner: it belongs to whose request under the name the service accepts
	// first, and everybody else gets 404. A GET, HEAD or DELETE binds nothing.
	Owned []string `yaml:"owned"`
	// What happens to a job that nobody polls.
	Abandoned Abandoned `yaml:"abandoned"`
	// What a refused client sees.
	Busy Answer `yaml:"busy"`
	// What the client of a lost lease sees.
	Lost Answer `yaml:"lost"`
	// Longest upload.
	MaxUpload int64 `yaml:"maxUpload" form:"size" default:"50MiB" min:"1024"`
	// Longest time that one job or request may keep a lease. Then its slot is given
	// back, and the compile is cancelled where the service can.
	HoldMax time.Duration `yaml:"hold.max" default:"600s" min:"1s" max:"24h"`
	// Longest silence of the upstream; the default is 60s in job mode and
	// hold.max in sync mode. Before an answer begins, one that is not shorter
	// than hold.max does not count: hold.max decides.
	Timeout time.Duration `yaml:"timeout" min:"100ms" max:"24h"`
	// reject answers paths that no route matches with 404; passThrough sends
	// them up without a lease.
	Unmatched Unmatched `yaml:"unmatched" default:"reject" enum:"reject,passThrough"`
}

// Route matches requests and reads their answers.
type Route struct {
	// Methods that match.
	Methods []string `yaml:"match.methods"`
	// Path below the base URL, with {name} for a segment, [...] for an optional
	// part and {name...} for the rest; empty means the service has no such
	// route.
	Path string `yaml:"match.path"`
	// Another base URL for this route, such as the port of a service's files; it
	// gets the same credential.
	Upstream string `yaml:"upstream"`
	// Statuses of an accepted submit; any other ends the compile there.
	Accepted []int `yaml:"accepted" min:"200" max:"399"`
	// Where an accepted answer names its job; the first hit counts.
	JobID []Pick `yaml:"jobId"`
	// Answers that end a job.
	Terminal []End `yaml:"terminal"`
}

// Pick takes a text out of an answer: a JSON pointer or a header, and then a
// group of a regular expression.
type Pick struct {
	// JSON pointer, such as /job_id.
	JSON string `yaml:"json"`
	// Header, such as Location.
	Header string `yaml:"header"`
	// What of it is the id: the first group.
	Regex *regexp.Regexp `yaml:"regex"`
}

// End recognises an answer that ends a job. All conditions that are set must
// hold.
type End struct {
	// JSON pointer to a value, such as /status. A * stands for every element of an
	// array, as in /results/*/status: then there must be some, and all of their
	// values must be in the list.
	JSON string `yaml:"json"`
	// Values that it may have.
	In []string `yaml:"in"`
	// A header that is there.
	Header string `yaml:"header"`
	// What the header looks like.
	Regex *regexp.Regexp `yaml:"regex"`
	// Statuses of the answer.
	Status []int `yaml:"status" min:"100" max:"599"`
	// How the job has ended; metrics count it.
	Outcome Outcome `yaml:"outcome" required:"true" enum:"ok,error,gone"`
}

// Abandoned says what happens to a job that nobody polls.
type Abandoned struct {
	// watch: the gateway polls it until it ends, so the slot counts compiles.
	// expire: the slot is free after the lease's TTL.
	Mode Abandonment `yaml:"mode" default:"watch" enum:"watch,expire"`
	// The longest pause between two polls of it. A young job is polled after a
	// quarter of its age, and while somebody waits for its resource every job is
	// polled each second, whoever else polls.
	Every time.Duration `yaml:"every" default:"10s" min:"100ms" max:"1h"`
	// For how long.
	Max time.Duration `yaml:"max" default:"300s" min:"1s" max:"24h"`
}

// Answer is a fixed answer; {job}, {message}, {retryAfter} (seconds) and
// {data} (a JSON object with code, resource, level, …) are filled in. JSON is the
// body's text, also where ContentType says that it is something else.
type Answer struct {
	// HTTP status.
	Status int `yaml:"status" min:"200" max:"599"`
	// Body.
	JSON string `yaml:"json"`
	// Content-Type; application/json where empty.
	ContentType string `yaml:"contentType"`
}
