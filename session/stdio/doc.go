// Package stdio runs MCP servers that speak over their standard input and
// output, one line a message, and sees to it that nothing of them is left.
//
// Between the gateway and the program stands a guard: the gateway's own binary
// again, in a mode that [MaybeRunGuard] recognizes by argv[0].
//
//	gateway ── stdin, stdout, stderr ───────────────▶ program ─▶ its children
//	   │                                                 ▲            ▲
//	   ├── control: the order, "kill now", end of file ▶ guard ───────┘
//	   └◀─ status: started, exited ────────────────────── │ ends and reaps them all
//
// The gateway holds the only writing end of the control pipe. When it breaks, by
// [Process.Close] or because the gateway is gone (kill -9 included), the guard
// sends SIGTERM to the program and all its descendants, after a grace SIGKILL,
// reaps them, removes the private HOME and ends. The same happens to what is left
// when the program itself ends. The messages do not pass through the guard.
//
// On Linux the guard is a subreaper: a descendant that left the process group
// and lost its parent becomes its child, so it finds every one. It dies with the
// kernel's help as well: if somebody kills the guard, the program gets SIGKILL
// and the gateway kills its process group; only then can a descendant with a
// session of its own survive. Two more cannot be ended by anybody but root: a
// descendant that changed its user (setuid) and one that hangs in the kernel.
//
// On other Unix systems the guard ends the program's process group only: a
// descendant that has made its own group survives. Elsewhere [Start] refuses.
//
// The program gets the environment of its document, PATH, LANG and a private
// HOME, its working directory unless another is named; no descriptor but its
// three. [Protect] keeps a program under the gateway's user from reading the
// gateway's memory and environment.
//
// A [Process] knows lines and not what they say. A [Bridge] makes an MCP server of
// it that is asked like one over HTTP; which message goes where is the business of
// package routing. Neither knows leases or client sessions.
package stdio
