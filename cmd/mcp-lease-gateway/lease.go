package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// leaseFlags are those of every `lease` command.
type leaseFlags struct {
	config    string
	endpoint  string
	tokenFile string
	caFile    string
	output    string
	auditFile string
	timeout   time.Duration
}

// newLeaseCommand makes `mcp-lease-gateway lease`: what an operator sees of all
// tenants' leases and does to them (spec §9).
func newLeaseCommand(deps leaseDeps) *cobra.Command {
	f := &leaseFlags{}
	c := &cobra.Command{
		Use:   "lease",
		Short: "See who holds what, and take slots away",
		Long: `See who holds which lease, what is full, what has drifted, and take slots away.

The commands need only "store" and "internal" of gateway.yaml, or --endpoint and
--token-file. With a MongoDB store they read it directly, so they work with every
pod down; with the embedded store they ask the running pod. What runs a handler
(revoke, revoke-pod, sweep) always acts through a pod.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 the store or the pod
cannot be reached.`,
		Example: `  mcp-lease-gateway lease list --tenant acme
  mcp-lease-gateway lease counters --resource browser
  mcp-lease-gateway lease revoke 4fq7c2mn1x
  mcp-lease-gateway lease list --endpoint http://10.0.0.7:8081 --token-file token -o json`,
		Args: wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := c.Help(); err != nil {
				return err
			}
			return usage(errors.New("name a command"))
		},
	}
	p := c.PersistentFlags()
	p.StringVar(&f.config, "config", "gateway.yaml", "the gateway's `file`")
	p.StringVar(&f.endpoint, "endpoint", "", "a pod's internal listener, such as http://10.0.0.7:8081; no gateway.yaml is read then")
	p.StringVar(&f.tokenFile, "token-file", "", "`file` with the internal token, for --endpoint")
	p.StringVar(&f.caFile, "ca-file", "", "`file` with the certificates that vouch for the pod's, besides the system's")
	p.StringVarP(&f.output, "output", "o", "table", "how to print: table or json")
	p.DurationVar(&f.timeout, "timeout", 30*time.Second, "longest time that the command may take, its question aside")
	must(c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))

	t := &leaseTool{leaseDeps: deps, flags: f}
	c.AddCommand(t.listCommand(), t.showCommand(), t.countersCommand(), t.definitionCommand(),
		t.revokeCommand(), t.revokePodCommand(), t.sweepCommand(), t.reconcileCommand())
	return c
}

// leaseTool is what the commands share.
type leaseTool struct {
	leaseDeps
	flags *leaseFlags
}

// check refuses flags that make no sense together, before anything is reached.
func (t *leaseTool) check(c *cobra.Command) error {
	if t.flags.output != "table" && t.flags.output != "json" {
		return usage(fmt.Errorf("--output is %q and must be table or json", t.flags.output))
	}
	if (t.flags.endpoint == "") != (t.flags.tokenFile == "") {
		return usage(errors.New("--endpoint and --token-file belong together"))
	}
	if t.flags.timeout <= 0 {
		return usage(errors.New("--timeout must be above 0"))
	}
	var empty error
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			// An empty filter is an unset shell variable more often than a wish.
			empty = usage(fmt.Errorf("--%s is empty", f.Name))
		}
	})
	return empty
}

func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usage(fmt.Errorf("name one %s", what))
		}
		return nil
	}
}

// must is for what can only fail by a slip in this file.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
