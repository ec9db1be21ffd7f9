package main

import "github.com/spf13/cobra"

func newServeCommand() *cobra.Command { return &cobra.Command{Use: "serve"} }
func newCheckCommand() *cobra.Command { return &cobra.Command{Use: "check"} }
