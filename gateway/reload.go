package gateway

import (
	"context"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/vancetope/mcp-lease-gateway/config"
)

const (
	// reloadSettle is how long a changed file is left alone: editors and mounted
	// volumes write in several steps.
	reloadSettle = 200 * time.Millisecond
	// reloadPoll finds what no event tells of: files that ${file:…} names,
	// network file systems, a watch that broke.
	reloadPoll = 15 * time.Second
)

// Reloader reads gateway.yaml anew when it changes and puts identity, egress,
// limits and documents in force. An invalid file keeps the state that is.
type Reloader struct {
	Path string
	Load func() (*config.Gateway, error)
	// Build makes the next State.
	Build func(ctx context.Context, c *config.Gateway, previous *State) (*State, error)
	Live  *Live
	// Applied is told of a new State in force; may be nil.
	Applied func(*State)
	// Outcome counts: ok, invalid.
	Outcome func(string)
	Log     *slog.Logger

	loaded *config.Gateway // as Load last gave it
	failed string          // the complaint that was last logged
}

// Run reloads until ctx ends. What the States do in the background ends with
// ctx too.
func (r *Reloader) Run(ctx context.Context) {
	if r.loaded == nil {
		// What the pod started with, unless the file has changed since: then the first
		// look below sees it.
		r.loaded = r.Live.Load().Config
	}
	var events <-chan fsnotify.Event
	var errs <-chan error
	if watcher, err := fsnotify.NewWatcher(); err != nil {
		r.Log.Warn("gateway.yaml cannot be watched; it is looked at now and then", "every", reloadPoll, "err", err)
	} else {
		defer func() { _ = watcher.Close() }()
		// The folder is watched and not the file: a file that is replaced, or a link
		// in a mounted ConfigMap that is swapped, is another file afterwards.
		if err := watcher.Add(filepath.Dir(r.Path)); err != nil {
			r.Log.Warn("gateway.yaml cannot be watched; it is looked at now and then", "every", reloadPoll, "err", err)
		}
		events, errs = watcher.Events, watcher.Errors
	}
	poll := time.NewTicker(reloadPoll)
	defer poll.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if r.concerns(e.Name) {
				settle.Reset(reloadSettle)
			}
		case err := <-errs:
			r.Log.Warn("watching gateway.yaml", "err", err)
			settle.Reset(reloadSettle) // events may have been lost
		case <-settle.C:
			r.Look(ctx)
		case <-poll.C:
			r.Look(ctx)
		}
	}
}

// concerns reports whether an event in the folder can mean the file: itself, or
// the links of a mounted ConfigMap, whose names begin with two dots.
func (r *Reloader) concerns(name string) bool {
	base := filepath.Base(name)
	return base == filepath.Base(r.Path) || strings.HasPrefix(base, "..")
}

// Look reads the file once and puts it in force where it has changed.
func (r *Reloader) Look(ctx context.Context) {
	c, err := r.Load()
	if err != nil {
		r.complain(err)
		return
	}
	if r.loaded != nil && reflect.DeepEqual(c, r.loaded) {
		r.failed = ""
		return
	}
	previous := r.Live.Load()
	state, err := r.Build(ctx, c, previous)
	if err != nil {
		r.complain(err)
		return
	}
	if r.loaded != nil {
		if names := needRestart(r.loaded, c); len(names) > 0 {
			r.Log.Warn("gateway.yaml has changed in keys that count from the next start on", "keys", strings.Join(names, ", "))
		}
	}
	r.loaded, r.failed = c, ""
	r.Live.replace(state)
	if r.Applied != nil {
		r.Applied(state)
	}
	r.Outcome("ok")
	r.Log.Info("gateway.yaml was read anew", "file", r.Path)
}

// complain logs and counts an invalid file, once for each thing that is wrong
// with it and not at every look.
func (r *Reloader) complain(err error) {
	if err.Error() == r.failed {
		return
	}
	r.failed = err.Error()
	r.Log.Error("gateway.yaml has changed and is not valid; what was read before stays in force", "file", r.Path, "err", err)
	r.Outcome("invalid")
}

// countAtOnce are the keys of gateway.yaml that a reload puts in force.
var countAtOnce = map[string]bool{"identity": true, "egress": true, "limits": true}

// needRestart names the keys that differ and are only read at start, as they
// stand in the file. A field that is no key, such as what Load found odd in the
// file, is none of them.
func needRestart(was, now *config.Gateway) []string {
	var names []string
	a, b := reflect.ValueOf(*was), reflect.ValueOf(*now)
	for i := range a.NumField() {
		key, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("yaml"), ",")
		if key == "" || key == "-" || countAtOnce[key] || reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			continue
		}
		names = append(names, key)
	}
	return names
}
