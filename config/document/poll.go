package document

import (
	"context"
	"log/slog"
	"time"
)

const (
	// pollEvery is the time between two reads of a source that cannot say itself
	// that it has changed: well below MaxAge, or the reads would be of no use.
	pollEvery = 2 * time.Second
	// pollRarest is the longest pause: of a read that failed again and again, and
	// of one that takes long.
	pollRarest = 30 * time.Second
	// pollShare keeps a slow source from being read all the time: a pause is so
	// many times as long as the read before it.
	pollShare = 9
	// pollTimeout bounds one read.
	pollTimeout = 10 * time.Second
)

// snapshot is what one read of a source has found.
type snapshot struct {
	// by is how the fingerprints were made. Those of different kinds say nothing about
	// each other.
	by           string
	fingerprints map[Key]fingerprint
}

// since is what has changed between before and s. Where they cannot be compared
// anything may have.
func (s snapshot) since(before snapshot) []Change {
	if s.by != before.by {
		return []Change{{}}
	}
	return difference(before.fingerprints, s.fingerprints)
}

// polling reads a source again and again. What changes and changes back between
// two reads it does not see.
type polling struct {
	read    func(context.Context) (snapshot, error)
	changed func(...Change)
	log     *slog.Logger
	every   time.Duration
}

// run tells of changes until ctx ends. The first snapshot says that anything may
// have changed: what was read before it may be older than it. A read that fails
// leaves the last snapshot as it is, so that whatever changes during an outage is
// told of when it is over.
func (p polling) run(ctx context.Context) {
	var known snapshot
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
				p.log.Info("documents are watched for changes", "documents", len(now.fingerprints), "by", now.by)
			case failed:
				p.log.Info("documents can be watched again", "documents", len(now.fingerprints), "by", now.by)
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

func (p polling) once(ctx context.Context) (snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return p.read(ctx)
}
