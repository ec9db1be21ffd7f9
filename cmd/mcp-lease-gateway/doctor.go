package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// doctorFlags are those of `doctor`.
type doctorFlags struct {
	headers   []string
	tokenFile string
	tool      string
	args      string
	output    string
	timeout   time.Duration
}

// newDoctorCommand makes `mcp-lease-gateway doctor`: an MCP client that says what
// any client of a URL will see.
func newDoctorCommand() *cobra.Command {
	f := &doctorFlags{}
	c := &cobra.Command{
		Use:   "doctor URL",
		Short: "Say what an MCP client of a URL will see",
		Long: `doctor is an MCP client. It opens a session at URL, lists the tools, calls one if told,
opens a second session beside the first, closes, comes again as a client that tries the
revision without sessions first, and says in words what a client will see.

The URL may be a gateway's or a server's own. What it opens it closes; a session that
the second one replaces was the doctor's own.

Exit codes: 0 a client can work there, 1 something failed, 2 wrong usage, 4 the URL
cannot be reached.`,
		Example: `  mcp-lease-gateway doctor http://127.0.0.1:8080/mcp/dev/demo/browser
  mcp-lease-gateway doctor https://gateway.example.com/mcp/acme/thesis/browser --token-file key
  mcp-lease-gateway doctor URL --tool browser_navigate --args '{"url": "https://example.com/"}'`,
		Args: oneArg("URL"),
		RunE: func(c *cobra.Command, args []string) error {
			d, err := newDoctor(args[0], f)
			if err != nil {
				return usage(err)
			}
			return d.run(c.Context()).print(c.OutOrStdout(), f.output)
		},
	}
	p := c.Flags()
	p.StringArrayVar(&f.headers, "header", nil, "a `header` for every request, such as 'X-Vance-User: ada'; may be repeated")
	p.StringVar(&f.tokenFile, "token-file", "", "`file` with a bearer token for every request")
	p.StringVar(&f.tool, "tool", "", "the `name` of a tool to call")
	p.StringVar(&f.args, "args", "{}", "the tool's arguments, a JSON object")
	p.StringVarP(&f.output, "output", "o", "text", "how to print: text or json")
	p.DurationVar(&f.timeout, "timeout", 2*time.Minute, "longest time that one step may take; a first start of a child process takes a minute")
	must(c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	return c
}

// newDoctor reads the flags. Its error is a wrong usage.
func newDoctor(address string, f *doctorFlags) (*doctor, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the URL must be one that a client would use, such as http://127.0.0.1:8080/mcp/dev/demo/browser")
	}
	if u.User != nil {
		return nil, errors.New("the URL holds a user name or a password; give a credential with --token-file or --header")
	}
	if f.output != "text" && f.output != "json" {
		return nil, fmt.Errorf("--output is %q and must be text or json", f.output)
	}
	if f.timeout <= 0 {
		return nil, errors.New("--timeout must be above 0")
	}
	d := &doctor{url: u, tool: f.tool, timeout: f.timeout}
	if err := json.Unmarshal([]byte(f.args), &d.args); err != nil || d.args == nil {
		return nil, errors.New(`--args must be a JSON object, such as {"url": "https://example.com/"}`)
	}
	if f.args != "{}" && f.tool == "" {
		return nil, errors.New("--args belongs to --tool")
	}
	header, err := f.header()
	if err != nil {
		return nil, err
	}
	d.wire = newDoctorWire(u.Host, header)
	return d, nil
}

// header is what every request carries.
func (f *doctorFlags) header() (http.Header, error) {
	h := http.Header{}
	for _, line := range f.headers {
		name, value, found := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !found || name == "" || value == "" || strings.ContainsAny(line, "\r\n") {
			return nil, errors.New("--header must be 'Name: value'")
		}
		h.Add(name, value)
	}
	if f.tokenFile != "" {
		token, err := readToken(f.tokenFile)
		if err != nil {
			return nil, err
		}
		h.Set("Authorization", "Bearer "+token)
	}
	return h, nil
}

// doctor asks one URL.
type doctor struct {
	url     *url.URL
	tool    string
	args    map[string]any
	timeout time.Duration
	wire    *doctorWire
	found   diagnosis
}

// run takes all steps that can be taken.
func (d *doctor) run(ctx context.Context) *diagnosis {
	d.found.URL = d.shownURL()
	if first := d.open(ctx); first != nil {
		d.list(ctx, first)
		if d.tool != "" {
			d.call(ctx, first)
		}
		d.end(d.second(ctx, first))
	}
	if !d.found.Unreachable {
		d.otherEra(ctx)
	}
	d.found.hide(d.wire.secrets())
	return &d.found
}

// shownURL is the URL without its query, which may hold a secret.
func (d *doctor) shownURL() string {
	u := *d.url
	u.Fragment = ""
	if u.RawQuery != "" {
		u.RawQuery = "…"
	}
	return u.String()
}
