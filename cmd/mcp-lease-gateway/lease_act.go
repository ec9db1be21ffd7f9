package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/client"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// What --force means, for help and output.
const forceHelp = `--force revokes in the store without a pod, for when none can be reached (with the
embedded store: only when none runs). No handler runs then: the slot is free and the
holder fails at its next use, but what it stood for, such as a remote browser session,
goes on until a pod comes up and its sweep runs the handler, or until it expires by
itself.

` + recordHelp

const forcedNote = "forced in the store: no handler has run. The slot is free and the holder fails at its next use; " +
	"what the lease stood for goes on until a pod's next sweep runs the handler, or until it expires by itself."

// forcedResult is -o json of a forced act.
type forcedResult struct {
	Forced bool   `json:"forced"`
	Note   string `json:"note"`
	Result any    `json:"result"`
}

func (t *leaseTool) revokeCommand() *cobra.Command {
	var force, yes bool
	c := &cobra.Command{
		Use:   "revoke TOKEN",
		Short: "Take a lease away",
		Long: `Take a lease away: the holder is marked, its slots are free at once, and the handler
of its type ends what it stood for. The holder notices at its next use (LEASE_LOST).

` + forceHelp,
		Example: `  mcp-lease-gateway lease revoke 4fq7c2mn1x
  mcp-lease-gateway lease revoke 4fq7c2mn1x --yes --force`,
		Args:              oneArg("token"),
		ValidArgsFunction: t.completeToken,
		RunE: func(c *cobra.Command, args []string) error {
			return t.run(c, func(ctx context.Context, p *place) error {
				look, forced, err := p.looker(ctx, c, force)
				if err != nil {
					return err
				}
				h, err := look.Holder(ctx, args[0])
				if err != nil {
					return err
				}
				if h.State == lease.Revoked {
					return &view.Error{Code: view.NotFound, Message: fmt.Sprintf("the lease %s has ended already (%s, %s ago)", h.Token, h.Revocation.Reason, since(h.Revocation.At))}
				}
				question := fmt.Sprintf("Revoke %s: %s on %s of %s/%s, user %s, held for %s?",
					h.Token, h.Type, plain(h.Resource), plain(h.Tenant), plain(h.Project), plain(h.User), view.Span(h.AgeSeconds))
				if err := t.confirm(c, yes, question); err != nil {
					return err
				}
				return t.limited(c, func(ctx context.Context) error {
					if force {
						done, err := forced.revoke(ctx, h)
						return t.report(c, err, done, true, "revoked "+h.Token)
					}
					var done view.Holder
					err := p.pod(ctx, func(pod *client.Client) error {
						var err error
						done, err = pod.Revoke(ctx, h.Token)
						return err
					})
					return t.report(c, err, done, false, "revoked "+h.Token+handlerNote(done))
				})
			})
		},
	}
	t.forceFlags(c, &force, &yes)
	return c
}

func handlerNote(h view.Holder) string {
	if h.Revocation != nil && !h.Revocation.Handled {
		return "; its handler runs now (`lease list --revoked` tells when it has)"
	}
	return "; its handler has run"
}

func (t *leaseTool) revokePodCommand() *cobra.Command {
	var force, yes bool
	c := &cobra.Command{
		Use:   "revoke-pod POD",
		Short: "Take every lease of a pod away",
		Long: `Take every lease of a pod away, as when the pod is known to be dead and its heartbeat
is not stale yet.

` + forceHelp,
		Example: `  mcp-lease-gateway lease revoke-pod web-1-7f3kq --yes`,
		Args:    oneArg("pod"),
		RunE: func(c *cobra.Command, args []string) error {
			return t.run(c, func(ctx context.Context, p *place) error {
				look, forced, err := p.looker(ctx, c, force)
				if err != nil {
					return err
				}
				held, err := allHolders(ctx, look, view.HolderQuery{Pod: args[0]})
				if err != nil {
					return err
				}
				if err := t.confirm(c, yes, fmt.Sprintf("Revoke every lease of pod %s (%d now)?", plain(args[0]), len(held))); err != nil {
					return err
				}
				return t.limited(c, func(ctx context.Context) error {
					if force {
						done, err := forced.revokePod(ctx, args[0])
						return t.report(c, err, done, true, fmt.Sprintf("revoked %d lease(s) of pod %s", done.Revoked, plain(args[0])))
					}
					var done view.PodRevoked
					err := p.pod(ctx, func(pod *client.Client) error {
						var err error
						done, err = pod.RevokePod(ctx, args[0])
						return err
					})
					return t.report(c, err, done, false, fmt.Sprintf("revoked %d lease(s) of pod %s", done.Revoked, plain(args[0])))
				})
			})
		},
	}
	t.forceFlags(c, &force, &yes)
	return c
}

func (t *leaseTool) sweepCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sweep",
		Short: "Run a reaper round now",
		Long: `Run a reaper round now, on a pod: take what is past its TTL and what dead pods held,
and run the handlers that still have to run.`,
		Example: `  mcp-lease-gateway lease sweep`,
		Args:    wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.run(c, func(ctx context.Context, p *place) error {
				var done lease.Swept
				err := p.pod(ctx, func(pod *client.Client) error {
					var err error
					done, err = pod.Sweep(ctx)
					return err
				})
				return t.report(c, err, done, false, fmt.Sprintf("idle %d, dead pods' %d, adopted %d, handlers run %d, handlers waiting %d, marks purged %d",
					done.Idle, done.Pod, done.Adopted, done.Handled, done.Unhandled, done.Purged))
			})
		},
	}
}

func (t *leaseTool) reconcileCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "reconcile",
		Short: "Put drifted counters right",
		Long: `Set every counter that has drifted to the number of holders that book it, and remove
counters that nobody books. Counters younger than the safety margin are left, since
their holder may be on the way; they are listed, and an audit of each begins: the next
pass of a pod, or of this command, that comes a margin later corrects it however busy
it is. It needs no handler: with a MongoDB store it runs there directly, without a pod.

` + recordHelp,
		Example: `  mcp-lease-gateway lease reconcile`,
		Args:    wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.run(c, func(ctx context.Context, p *place) error {
				var done view.Reconciled
				var err error
				if p.shared() {
					var d *forcedView
					if d, err = p.forced(ctx, c); err != nil {
						return err
					}
					done, err = d.reconcile(ctx)
				} else if err = t.noRecord(); err == nil {
					err = p.pod(ctx, func(pod *client.Client) error {
						var err error
						done, err = pod.Reconcile(ctx)
						return err
					})
				}
				if err := t.report(c, err, done, false, fmt.Sprintf("corrected %d, removed %d, left %d", done.Corrected, done.Removed, len(done.Left))); err != nil || len(done.Left) == 0 || t.flags.output == "json" {
					return err
				}
				left := newTable(c.OutOrStdout(), "LEFT, TOO FRESH", "COUNT", "BOOKED", "UPDATED", "AUDIT")
				for _, d := range done.Left {
					left.row(d.ID, fmt.Sprint(d.Count), fmt.Sprint(d.Booked), view.Span(d.AgeSeconds)+" ago", map[bool]string{true: "open", false: "-"}[d.Audited])
				}
				return left.end()
			})
		},
	}
	t.auditFileFlag(c)
	return c
}

// looker is where an act looks first: with --force the store, for no pod may be
// there to ask. The second is where it acts then.
func (p *place) looker(ctx context.Context, c *cobra.Command, force bool) (reader, *forcedView, error) {
	if force {
		d, err := p.forced(ctx, c)
		return d, d, err
	}
	if err := p.tool.noRecord(); err != nil {
		return nil, nil, err
	}
	r, err := p.reader(ctx)
	return r, nil, err
}

// noRecord refuses --audit-file where a pod acts, and keeps the record.
func (t *leaseTool) noRecord() error {
	if t.flags.auditFile != "" {
		return usage(errors.New("--audit-file is for what is done without a pod; a pod writes its own audit log"))
	}
	return nil
}

func (t *leaseTool) forceFlags(c *cobra.Command, force, yes *bool) {
	c.Flags().BoolVar(force, "force", false, "revoke in the store without a pod; no handler runs")
	c.Flags().BoolVarP(yes, "yes", "y", false, "do not ask; needed where there is no terminal")
	t.auditFileFlag(c)
}

func (t *leaseTool) auditFileFlag(c *cobra.Command) {
	c.Flags().StringVar(&t.flags.auditFile, "audit-file", "", "`file` that takes the audit lines of what is done without a pod, instead of telemetry.audit; - is standard error")
}

// confirm asks the person at the terminal.
func (t *leaseTool) confirm(c *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	if !t.terminal(c.InOrStdin()) {
		return usage(errors.New("there is no terminal to ask on: say --yes"))
	}
	_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s [y/N] ", question)
	line, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was done")
}

// report prints what an act did.
func (t *leaseTool) report(c *cobra.Command, err error, done any, forced bool, sentence string) error {
	if err != nil {
		return err
	}
	if t.flags.output == "json" {
		if forced {
			done = forcedResult{Forced: true, Note: forcedNote, Result: done}
		}
		return printJSON(c.OutOrStdout(), done)
	}
	if forced {
		sentence += "\n" + forcedNote
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), sentence)
	return err
}
