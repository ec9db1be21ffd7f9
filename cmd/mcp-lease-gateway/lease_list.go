package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/client"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// run is the frame of a command: flags checked, configuration read, time
// bounded, store closed.
func (t *leaseTool) run(c *cobra.Command, do func(ctx context.Context, p *place) error) error {
	if err := t.check(c); err != nil {
		return err
	}
	p, err := t.reach()
	if err != nil {
		return coded(err)
	}
	err = t.limited(c, func(ctx context.Context) error { return do(ctx, p) })
	if closed := p.close(); err == nil {
		err = closed
	}
	return err
}

// limited does something in the time of --timeout. An act begins it anew behind its
// question: how long a person thinks does not count.
func (t *leaseTool) limited(c *cobra.Command, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.Context(), t.flags.timeout)
	defer cancel()
	err := do(ctx)
	if _, ok := errors.AsType[*judgedError](err); ok || err == nil {
		return err
	}
	return &judgedError{t.timed(ctx, err)}
}

// judgedError is an error that has its code and says which time ran out.
type judgedError struct{ error }

func (e *judgedError) Unwrap() error { return e.error }

// timed gives an error its code, and says where the time that was given is why a
// command failed.
func (t *leaseTool) timed(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*view.Error](err); ok && e.RanOut {
		return &codeError{codeFailed, fmt.Errorf("%w; give it more time with a --timeout above %s", err, t.flags.timeout)}
	}
	err = coded(err)
	var c *codeError
	if errors.As(err, &c) && c.code == codeUnreachable && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return unreachable(fmt.Errorf("the time given (--timeout %s) has run out: %w", t.flags.timeout, err))
	}
	return err
}

func (t *leaseTool) listCommand() *cobra.Command {
	var q view.HolderQuery
	var revoked bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List who holds what",
		Long: `List the holders of all tenants, or those that the filters leave.

TOKEN is shortened to what names the holder. AGE counts from the acquire, IDLE from
the last use; where IDLE passes TTL the reaper takes the lease. LEVELS are the
quota levels that it books.

With --revoked it lists what was taken away in the last hour instead: why, by whom,
and whether the handler that ends the resource has run.`,
		Example: `  mcp-lease-gateway lease list --tenant acme --resource browser
  mcp-lease-gateway lease list --pod web-1-7f3kq --type mcp
  mcp-lease-gateway lease list --revoked -o json`,
		Args: wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.run(c, func(ctx context.Context, p *place) error {
				if revoked {
					q.States = []string{string(lease.Revoked)}
				}
				r, err := p.reader(ctx)
				if err != nil {
					return err
				}
				all, err := allHolders(ctx, r, q)
				if err != nil {
					return err
				}
				if t.flags.output == "json" {
					return printJSON(c.OutOrStdout(), view.HolderPage{Holders: all})
				}
				if revoked {
					return printRevoked(c, all)
				}
				return printHolders(c, all)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&q.Tenant, "tenant", "", "only this tenant")
	f.StringVar(&q.Project, "project", "", "only this project")
	f.StringVar(&q.User, "user", "", "only this user")
	f.StringVar(&q.Resource, "resource", "", "only this resource")
	f.StringVar(&q.Pod, "pod", "", "only this pod")
	f.StringVar(&q.Type, "type", "", "only this type: mcp or tex")
	f.BoolVar(&revoked, "revoked", false, "what was taken away in the last hour, and whether its handler has run")
	must(c.RegisterFlagCompletionFunc("type", cobra.FixedCompletions([]string{"mcp", "tex"}, cobra.ShellCompDirectiveNoFileComp)))
	t.complete(c, "tenant", func(h view.Holder) string { return h.Tenant })
	t.complete(c, "project", func(h view.Holder) string { return h.Project })
	t.complete(c, "user", func(h view.Holder) string { return h.User })
	t.complete(c, "resource", func(h view.Holder) string { return h.Resource })
	t.complete(c, "pod", func(h view.Holder) string { return h.Pod })
	return c
}

// allHolders reads page after page.
func allHolders(ctx context.Context, r reader, q view.HolderQuery) ([]view.Holder, error) {
	q.Limit = view.MaxLimit
	all := []view.Holder{}
	for {
		page, err := r.Holders(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Holders...)
		if page.Next == "" {
			return all, nil
		}
		q.After = page.Next
	}
}

func printHolders(c *cobra.Command, all []view.Holder) error {
	t := newTable(c.OutOrStdout(), "TOKEN", "TYPE", "RESOURCE", "TENANT", "PROJECT", "USER", "POD", "STATE", "AGE", "IDLE", "TTL", "LEVELS")
	for _, h := range all {
		t.row(h.Token, h.Type, h.Resource, h.Tenant, h.Project, h.User, h.Pod, string(h.State),
			view.Span(h.AgeSeconds), view.Span(h.IdleSeconds), view.Span(h.TTLSeconds), levels(h))
	}
	return t.end()
}

func printRevoked(c *cobra.Command, all []view.Holder) error {
	t := newTable(c.OutOrStdout(), "TOKEN", "TYPE", "RESOURCE", "TENANT", "PROJECT", "USER", "POD", "REASON", "BY", "REVOKED", "HANDLER")
	for _, h := range all {
		r := h.Revocation
		if r == nil {
			continue
		}
		ran := "waiting"
		if r.Handled {
			ran = "has run"
		}
		t.row(h.Token, h.Type, h.Resource, h.Tenant, h.Project, h.User, h.Pod, string(r.Reason), r.By, since(r.At)+" ago", ran)
	}
	return t.end()
}

func since(t time.Time) string { return view.Span(max(0, int64(time.Since(t)/time.Second))) }

func levels(h view.Holder) string {
	names := make([]string, len(h.Levels))
	for i, l := range h.Levels {
		names[i] = l.Level
	}
	return strings.Join(names, ",")
}

func (t *leaseTool) showCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "show TOKEN",
		Short: "Show one holder",
		Long: `Show everything about one holder, living or revoked in the last hour.

TOKEN is the beginning that list shows. Of the payload only the members' names are
shown: the values can open the upstream session.`,
		Example:           `  mcp-lease-gateway lease show 4fq7c2mn1x`,
		Args:              oneArg("token"),
		ValidArgsFunction: t.completeToken,
		RunE: func(c *cobra.Command, args []string) error {
			return t.run(c, func(ctx context.Context, p *place) error {
				r, err := p.reader(ctx)
				if err != nil {
					return err
				}
				h, err := r.Holder(ctx, args[0])
				if err != nil {
					return err
				}
				if t.flags.output == "json" {
					return printJSON(c.OutOrStdout(), h)
				}
				return printHolder(c, h)
			})
		},
	}
	return c
}

func printHolder(c *cobra.Command, h view.Holder) error {
	bound := "no: it outlives the pod"
	if h.PodBound {
		bound = "yes: it dies with the pod"
	}
	t := newTable(c.OutOrStdout(), "TOKEN", h.Token)
	for _, row := range [][2]string{
		{"STATE", string(h.State)}, {"TYPE", h.Type}, {"RESOURCE", h.Resource}, {"LEASE", h.Lease},
		{"TENANT", h.Tenant}, {"PROJECT", h.Project}, {"USER", h.User}, {"HOLDER", h.HolderRef},
		{"POD", h.Pod}, {"POD BOUND", bound},
		{"CREATED", h.CreatedAt.UTC().Format(time.RFC3339) + " (" + view.Span(h.AgeSeconds) + " ago)"},
		{"LAST USED", h.LastSeenAt.UTC().Format(time.RFC3339) + " (" + view.Span(h.IdleSeconds) + " ago)"},
		{"TTL", view.Span(h.TTLSeconds) + ", left " + view.Span(h.TTLLeftSeconds)},
		{"PAYLOAD", strings.Join(h.Payload, ", ")},
	} {
		t.row(row[0], row[1])
	}
	for _, l := range h.Levels {
		t.row("BOOKS", l.Counter)
	}
	if r := h.Revocation; r != nil {
		t.row("REVOKED", fmt.Sprintf("%s (%s ago), reason %s", r.At.UTC().Format(time.RFC3339), since(r.At), r.Reason))
		t.row("BY", r.By)
		ran := "has not run yet; a sweep runs it"
		if r.HandledAt != nil {
			ran = "has run at " + r.HandledAt.UTC().Format(time.RFC3339)
		}
		t.row("HANDLER", ran)
	}
	return t.end()
}

func (t *leaseTool) countersCommand() *cobra.Command {
	var q view.CounterQuery
	c := &cobra.Command{
		Use:   "counters",
		Short: "Show what is full and what has drifted",
		Long: `Show the counters of all levels, the global one included.

BOOKED is the number of holders that book the counter: the value to which reconcile
corrects. DRIFT is COUNT − BOOKED, marked with ! where it is not 0. Drift comes from a
crash between two writes, or from a booking under way; UPDATED tells which. CAP is
that of the last increment.`,
		Example: `  mcp-lease-gateway lease counters --resource browser --tenant acme
  mcp-lease-gateway lease counters --drifted`,
		Args: wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.run(c, func(ctx context.Context, p *place) error {
				r, err := p.reader(ctx)
				if err != nil {
					return err
				}
				all, err := allCounters(ctx, r, q)
				if err != nil {
					return err
				}
				if t.flags.output == "json" {
					return printJSON(c.OutOrStdout(), view.CounterPage{Counters: all})
				}
				return printCounters(c, all)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&q.Resource, "resource", "", "only this resource")
	f.StringVar(&q.Level, "level", "", "only this level: user, project, tenant or global")
	f.StringVar(&q.Tenant, "tenant", "", "only this tenant")
	f.StringVar(&q.Project, "project", "", "only this project")
	f.StringVar(&q.User, "user", "", "only this user")
	f.BoolVar(&q.Drifted, "drifted", false, "only counters with drift")
	must(c.RegisterFlagCompletionFunc("level", cobra.FixedCompletions([]string{"user", "project", "tenant", "global"}, cobra.ShellCompDirectiveNoFileComp)))
	return c
}

func allCounters(ctx context.Context, r reader, q view.CounterQuery) ([]view.Counter, error) {
	q.Limit = view.MaxLimit
	all := []view.Counter{}
	for {
		page, err := r.Counters(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Counters...)
		if page.Next == "" {
			return all, nil
		}
		q.After = page.Next
	}
}

func printCounters(c *cobra.Command, all []view.Counter) error {
	t := newTable(c.OutOrStdout(), "RESOURCE", "LEVEL", "SCOPE", "COUNT", "BOOKED", "CAP", "DRIFT", "UPDATED")
	drifted := 0
	for _, n := range all {
		drift := "0"
		if n.Drift != 0 {
			drift = fmt.Sprintf("%+d !", n.Drift)
			drifted++
		}
		t.row(n.Resource, n.Level, n.Scope, strconv.Itoa(n.Count), strconv.Itoa(n.Booked), strconv.Itoa(n.Cap), drift, view.Span(n.AgeSeconds)+" ago")
	}
	if err := t.end(); err != nil {
		return err
	}
	if drifted > 0 {
		_, _ = fmt.Fprintf(c.ErrOrStderr(), "! %d drifted: `lease reconcile` puts right what is older than the safety margin, and begins an audit of the rest\n", drifted)
	}
	return nil
}

func (t *leaseTool) definitionCommand() *cobra.Command {
	var tenant, project string
	c := &cobra.Command{
		Use:   "definition NAME --tenant T --project P",
		Short: "Show a lease's merged definition and where each field comes from",
		Long: `Show the definition of a lease as an acquire in this tenant and project sees it, read
fresh from the documents. Beside each field stands the layer that it came from
(bundled, system, tenant, project) and the values of other layers that did not count,
with the reason.

A lease counts on the levels and on the resource that its definition had when it was
taken. Where the tenant has living leases of this name that do not count on a level of
today's definition, their number is shown: until they end, so many more than the cap
may be in use.`,
		Example: `  mcp-lease-gateway lease definition browser --tenant acme --project thesis`,
		Args:    oneArg("lease"),
		RunE: func(c *cobra.Command, args []string) error {
			if tenant == "" || project == "" {
				return usage(errors.New("name --tenant and --project: a definition differs between them"))
			}
			return t.run(c, func(ctx context.Context, p *place) error {
				d, err := p.definition(ctx, c, tenant, project, args[0])
				if err != nil {
					return err
				}
				if t.flags.output == "json" {
					return printJSON(c.OutOrStdout(), d)
				}
				return printDefinition(c, d)
			})
		},
	}
	c.Flags().StringVar(&tenant, "tenant", "", "the tenant that acquires")
	c.Flags().StringVar(&project, "project", "", "the project that acquires")
	return c
}

// definition asks a pod, which has the documents for certain, and reads them
// here where none can be reached.
func (p *place) definition(ctx context.Context, c *cobra.Command, tenant, project, name string) (view.Definition, error) {
	var d view.Definition
	err := p.pod(ctx, func(pod *client.Client) error {
		var err error
		d, err = pod.Definition(ctx, tenant, project, name)
		return err
	})
	if !notConnected(err) || p.conf == nil || p.tool.definitions == nil || p.conf.Documents == (config.Documents{}) {
		return d, err
	}
	resolver, stop, localErr := p.tool.definitions(ctx, p.conf)
	if localErr != nil {
		return d, err
	}
	defer stop()
	_, _ = fmt.Fprintf(c.ErrOrStderr(), "no pod answers; this is what the documents on this machine say\n")
	local := view.View{Definitions: resolver}
	return local.Definition(ctx, tenant, project, name)
}

func printDefinition(c *cobra.Command, d view.Definition) error {
	t := newTable(c.OutOrStdout(), "FIELD", "VALUE", "LAYER", "IGNORED")
	for _, f := range d.Fields {
		layer := string(f.Layer)
		if layer == "" {
			layer = "default"
		}
		ignored := make([]string, len(f.Ignored))
		for i, n := range f.Ignored {
			ignored[i] = fmt.Sprintf("%s: %s (%s)", n.Layer, n.Value, n.Why)
		}
		if len(ignored) == 0 {
			ignored = []string{""}
		}
		t.row(f.Name, f.Value, layer, ignored[0])
		for _, more := range ignored[1:] {
			t.row(" ", " ", " ", more)
		}
	}
	if err := t.end(); err != nil {
		return err
	}
	if d.Noop {
		_, _ = fmt.Fprintln(c.ErrOrStderr(), "no level has a cap: this lease limits nothing")
	}
	for _, u := range d.Uncounted {
		_, _ = fmt.Fprintf(c.ErrOrStderr(), "%d living lease(s) of this tenant do not count on the level %s: the definition had not the level, or another resource, when they were taken. Until they end, so many more than its cap may be in use.\n", u.Leases, u.Level)
	}
	return nil
}

// complete offers the values that living holders have and that begin as what is
// typed.
func (t *leaseTool) complete(c *cobra.Command, flag string, of func(view.Holder) string) {
	must(c.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		seen := map[string]bool{}
		var out []cobra.Completion
		t.someHolders(c, view.HolderQuery{}, func(page []view.Holder) bool {
			for _, h := range page {
				if v := of(h); v != "" && strings.HasPrefix(v, typed) && !seen[v] {
					seen[v] = true
					out = append(out, plain(v))
				}
			}
			return true
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	}))
}

func (t *leaseTool) completeToken(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	// Tokens are listed in their order, so those that begin as typed are the first
	// behind it. A page of them is more than a person chooses from.
	t.someHolders(c, view.HolderQuery{After: typed}, func(page []view.Holder) bool {
		for _, h := range page {
			if !strings.HasPrefix(h.Token, typed) {
				break
			}
			out = append(out, cobra.CompletionWithDesc(h.Token, plain(fmt.Sprintf("%s %s of %s/%s/%s", h.Type, h.Resource, h.Tenant, h.Project, h.User))))
		}
		return false
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// someHolders reads pages for a completion, as many as more wants and as come
// quickly.
func (t *leaseTool) someHolders(c *cobra.Command, q view.HolderQuery, more func([]view.Holder) bool) {
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	p, err := t.reach()
	if err != nil {
		return
	}
	defer func() { _ = p.close() }()
	r, err := p.reader(ctx)
	if err != nil {
		return
	}
	q.Limit = view.MaxLimit
	for {
		page, err := r.Holders(ctx, q)
		if err != nil || !more(page.Holders) || page.Next == "" {
			return
		}
		q.After = page.Next
	}
}
