package document

import (
	"context"
	"log/slog"
	"time"
)

const (
	// pollEvery is the time between two looks at a source that cannot say itself
	// that it has changed: well below MaxAge, or the looks would be of no use.
	pollEvery = 2 * time.Second
	// pollRarest is the longest pause: of a look that failed again and again, and
	// of one that takes long.
	pollRarest = 30 * time.Second
	// pollShare keeps a slow source from being read all the time: a pause is so
	// many times as long as the look before it.
	pollShare = 9
	// lookTimeout bounds one look.
	lookTimeout = 10 * time.Second
)

// sight is what one look at a source has seen.
type sight struct {
	// by is how the prints were made. Those of different kinds say nothing about
	// each other.
	by     string
	prints map[Key]print
}

// since is what has changed between before and s. Where they cannot be compared
// anything may have.
func (s sight) since(before sight) []Change {
	if s.by != before.by {
		return []Change{{}}
	}
	return difference(before.prints, s.prints)
}

// poll looks at a source again and again. What changes and changes back between
// two looks it does not see.
type poll struct {
	look    func(context.Context) (sight, error)
	changed func(...Change)
	log     *slog.Logger
	every   time.Duration
}

// run tells of changes until ctx ends. The first sight says that anything may
// have changed: what was read before it may be older than it. A look that fails
// leaves the last sight as it is, so that whatever changes during an outage is
// told of when it is over.
func (p poll) run(ctx context.Context) {
	var known sight
	failed, pause := false, p.every
	for ctx.Err() == nil {
		began := time.Now()
		now, err := p.once(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return
		case err != nil:
			if !failed {
				p.log.Error("documents cannot be watched for changes; until they can, a change counts when the caches expire", "after", MaxAge, "err", err)
			}
			failed = true
			pause = min(2*pause, pollRarest)
		default:
			switch {
			case known.by == "":
				p.log.Info("documents are watched for changes", "documents", len(now.prints), "by", now.by)
			case failed:
				p.log.Info("documents can be watched again", "documents", len(now.prints), "by", now.by)
			}
			if changes := now.since(known); len(changes) > 0 {
				p.changed(changes...)
			}
			known, failed = now, false
			pause = max(p.every, min(pollShare*time.Since(began), pollRarest))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (p poll) once(ctx context.Context) (sight, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return p.look(ctx)
}
