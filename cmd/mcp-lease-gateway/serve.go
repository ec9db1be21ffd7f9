package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// stopTime is how long a stop may take in all. Its parts have bounds of their
// own; this one is for what has none, such as a file system that hangs.
const stopTime = drainTime + closeTime + 15*time.Second

func newServeCommand() *cobra.Command {
	var path, level, format string
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway",
		Long: `serve runs the gateway until it gets SIGTERM or SIGINT. Then it takes no new clients,
waits for calls under way, closes sessions (or leaves them to other pods, where
session.onShutdown is handover), gives its leases back and ends with 0. A second
signal cuts off what is under way.

identity, egress, limits and the documents are read anew when they change; the other
keys of gateway.yaml count from the next start on.`,
		Example: `  mcp-lease-gateway serve --config gateway.yaml`,
		Args:    wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLog(c.ErrOrStderr(), level, format)
			if err != nil {
				return &codeError{codeUsage, err}
			}
			return serve(c.Context(), path, log)
		},
	}
	configFlag(c, &path)
	c.Flags().StringVar(&level, "log-level", "info", "what is logged: debug (every request), info (requests that failed), warn or error")
	c.Flags().StringVar(&format, "log-format", "", "json or text; text on a terminal and json elsewhere")
	return c
}

// loadConfig reads gateway.yaml and fills in the secrets that a gateway on the
// embedded store makes for itself.
func loadConfig(path string, log *slog.Logger) (*config.Gateway, error) {
	g, err := config.Load(path, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	made, err := ownSecrets(g)
	for _, file := range made {
		log.Info("a secret that gateway.yaml does not set was made; keep the file", "file", file)
	}
	return g, err
}

func serve(ctx context.Context, path string, log *slog.Logger) error {
	load := func() (*config.Gateway, error) { return loadConfig(path, log) }
	conf, err := load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Before the pod takes anything: a signal while it is put together ends it in
	// order as well.
	stop, hurry := onSignals(log)
	p, err := newPod(ctx, conf, load, log)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- p.run(ctx, stop, hurry) }()
	select {
	case err := <-done:
		return err
	case <-stop:
	}
	select {
	case err := <-done:
		return err
	case <-time.After(stopTime):
		log.Error("the pod has not stopped in time and ends as it is; other pods and its next start give back what it held")
		return &codeError{codeFailed, context.DeadlineExceeded}
	}
}

// onSignals closes stop at the first signal to end and hurry at the second.
func onSignals(log *slog.Logger) (stop, hurry <-chan struct{}) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	first, second := make(chan struct{}), make(chan struct{})
	go func() {
		s := <-signals
		log.Info("a signal to end", "signal", s.String())
		close(first)
		<-signals
		close(second)
	}()
	return first, second
}

var (
	errLogLevel  = errors.New("--log-level is debug, info, warn or error")
	errLogFormat = errors.New("--log-format is json or text")
)

// newLog makes the log of level and format on w.
func newLog(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, errLogLevel
	}
	opt := &slog.HandlerOptions{Level: l}
	if format == "" {
		format = "json"
		if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			format = "text"
		}
	}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, opt)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, opt)), nil
	}
	return nil, errLogFormat
}
