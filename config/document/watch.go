package document

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long a folder must be quiet before it is read again: an
	// editor and a mounted ConfigMap change several entries for one change.
	settle = 50 * time.Millisecond
	// settleAtMost bounds that for a folder that is never quiet.
	settleAtMost = 500 * time.Millisecond
	// scanShare keeps somebody who changes files all the time from having them read
	// all the time: a pause is so many times as long as the scan before it.
	scanShare = 3
	// rescan is how often the folder is read without any event, for file systems
	// that send none.
	rescan = 10 * time.Second
)

// Watch calls changed for every document that changes until ctx ends. It compares
// texts: an event only says when to scan. Each scan makes its watches anew
// before it reads, so that a change between two scans, a new folder, or a link
// that was swapped is never missed.
func (d *Dir) Watch(ctx context.Context, log *slog.Logger, changed func(...Change)) {
	var known map[Key]sighting
	var complaint string
	for first := true; ctx.Err() == nil; first = false {
		began := time.Now()
		w, watchErr := d.watcher(ctx)
		now := d.scan(ctx, scanTexts, known)
		if ctx.Err() == nil && !first {
			changed(difference(prints(known), prints(now.found))...)
		}
		known = now.found
		if err := now.err(); err != nil && err.Error() != complaint {
			log.Error("documents cannot be read; what needs them is refused", "dir", d.root, "error", err)
			complaint = err.Error()
		} else if err == nil && complaint != "" {
			log.Info("documents can be read again", "dir", d.root)
			complaint = ""
		}
		if watchErr != nil && first {
			log.Warn("the documents folder cannot be watched; it is read periodically instead", "dir", d.root, "every", rescan, "error", watchErr)
		}
		wait(ctx, w, min(scanShare*time.Since(began), rescan/2))
	}
}

func prints(seen map[Key]sighting) map[Key]fingerprint {
	out := make(map[Key]fingerprint, len(seen))
	for key, s := range seen {
		out[key] = s.fingerprint
	}
	return out
}

// watcher watches every folder that has documents below it.
func (d *Dir) watcher(ctx context.Context) (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	folders := d.scan(ctx, scanFolders, nil).folders // what is wrong is found by the scan that follows
	if len(folders) == 0 {
		folders = []string{d.root}
	}
	for _, f := range folders {
		if e := w.Add(f); e != nil {
			err = cmp.Or(err, e)
		}
	}
	return w, err
}

// wait returns when the folder has changed and is quiet again, after rescan, or
// when ctx ends; a change ends it only after rest, so that whoever changes files
// all the time does not have them read all the time. It closes w.
func wait(ctx context.Context, w *fsnotify.Watcher, rest time.Duration) {
	var events chan fsnotify.Event
	var errs chan error
	if w != nil {
		defer w.Close()
		events, errs = w.Events, w.Errors
	}
	tick := time.NewTimer(rescan)
	defer tick.Stop()
	select {
	case <-ctx.Done():
		return
	case <-tick.C:
		return
	case <-events:
	case <-errs: // such as an overflow: scan
	}
	deadline := time.NewTimer(max(settleAtMost, rest))
	defer deadline.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-deadline.C:
			return
		case <-time.After(max(settle, rest)):
			return
		case <-events:
		case <-errs:
		}
	}
}

func difference(before, now map[Key]fingerprint) []Change {
	var out []Change
	for key, p := range now {
		if q, ok := before[key]; !ok || p != q {
			out = append(out, Change{key})
		}
	}
	for key := range before {
		if _, ok := now[key]; !ok {
			out = append(out, Change{key})
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return compareKeys(a.Key, b.Key) })
	return out
}

func sortKeys(keys []Key) { slices.SortFunc(keys, compareKeys) }

func compareKeys(a, b Key) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Project, b.Project), strings.Compare(a.Path, b.Path))
}
