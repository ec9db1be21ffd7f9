package document

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// polled is a source that a poll looks at, inside a bubble.
type polled struct {
	sync.Mutex
	texts map[Key]string
	by    string
	err   error
	takes time.Duration
	reads []time.Duration // when each began

	began time.Time
	told  []Change
	log   bytes.Buffer
}

func (p *polled) read(ctx context.Context) (snapshot, error) {
	p.Lock()
	p.reads = append(p.reads, time.Since(p.began))
	p.Unlock()
	select {
	case <-time.After(p.takes):
	case <-ctx.Done():
		return snapshot{}, ctx.Err()
	}
	p.Lock()
	defer p.Unlock()
	if p.err != nil {
		return snapshot{}, p.err
	}
	fingerprints := map[Key]fingerprint{}
	for key, text := range p.texts {
		fingerprints[key] = sha256.Sum256([]byte(text))
	}
	return snapshot{by: p.by, fingerprints: fingerprints}, nil
}

// changes are those told since the last call.
func (p *polled) changes() []Change {
	p.Lock()
	defer p.Unlock()
	defer func() { p.told = nil }()
	return p.told
}

// lines counts the log's lines that contain a text.
func (p *polled) lines(text string) (n int) {
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// inABubble runs a test beside a poll of p.
func inABubble(t *testing.T, p *polled, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p.began = time.Now()
		go polling{
			read: p.read, every: pollEvery, log: slog.New(slog.NewTextHandler(&p.log, nil)),
			changed: func(cs ...Change) {
				if len(cs) == 0 {
					t.Error("nothing is told of as a change")
				}
				p.Lock()
				defer p.Unlock()
				p.told = append(p.told, cs...)
			},
		}.run(ctx)
		test(t)
	})
}

// until lets time pass to a moment after the poll began.
func (p *polled) until(d time.Duration) {
	time.Sleep(time.Until(p.began.Add(d)))
	synctest.Wait()
}

// set changes the source.
func (p *polled) set(f func()) {
	p.Lock()
	defer p.Unlock()
	f()
}

func TestPoll(t *testing.T) {
	a, b, c := Key{"acme", "a", docPath}, Key{"acme", "b", docPath}, Key{"acme", "c", docPath}
	want := func(t *testing.T, got []Change, keys ...Key) {
		t.Helper()
		var want []Change
		for _, k := range keys {
			want = append(want, Change{k})
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	t.Run("the first look says that anything may have changed, a quiet one nothing", func(t *testing.T) {
		p := &polled{by: byHash, texts: map[Key]string{a: "1", b: "1"}}
		inABubble(t, p, func(t *testing.T) {
			p.until(0)
			want(t, p.changes(), Key{})
			p.until(time.Minute)
			want(t, p.changes())
		})
	})
	t.Run("what is new, other and gone is told at the next look, each once", func(t *testing.T) {
		p := &polled{by: byHash, texts: map[Key]string{a: "1", b: "1"}}
		inABubble(t, p, func(t *testing.T) {
			p.until(time.Second)
			p.changes()
			p.set(func() { p.texts = map[Key]string{a: "2", c: "1"} })
			p.until(pollEvery - time.Millisecond)
			want(t, p.changes())
			p.until(pollEvery)
			want(t, p.changes(), a, b, c)
			p.until(time.Minute)
			want(t, p.changes())
		})
	})
	t.Run("an outage is logged once, and what changed meanwhile is told after it", func(t *testing.T) {
		p := &polled{by: byHash, texts: map[Key]string{a: "1", b: "1"}}
		inABubble(t, p, func(t *testing.T) {
			p.until(time.Second)
			p.changes()
			p.set(func() { p.err, p.texts = errors.New("no server"), nil })
			p.until(10 * time.Minute)
			want(t, p.changes()) // that nothing can be seen is not that all is gone
			if n := p.lines("no server"); n != 1 {
				t.Errorf("%d lines:\n%s", n, &p.log)
			}
			p.set(func() { p.err, p.texts = nil, map[Key]string{a: "2"} })
			p.until(10*time.Minute + pollRarest)
			want(t, p.changes(), a, b)
			if n := p.lines("watched again"); n != 1 {
				t.Errorf("%d lines:\n%s", n, &p.log)
			}
			p.set(func() { p.err = errors.New("no server, the second time") })
			p.until(20 * time.Minute)
			if n := p.lines("second time"); n != 1 {
				t.Errorf("%d lines of the second outage:\n%s", n, &p.log)
			}
		})
	})
	t.Run("looks become rarer in an outage and are as often as before after it", func(t *testing.T) {
		p := &polled{by: byHash, err: errors.New("no server")}
		inABubble(t, p, func(t *testing.T) {
			p.until(75 * time.Second)
			p.set(func() { p.err = nil })
			p.until(95 * time.Second)
			s := time.Second
			if d := cmp.Diff([]time.Duration{0, 4 * s, 12 * s, 28 * s, 58 * s, 88 * s, 90 * s, 92 * s, 94 * s}, p.reads); d != "" {
				t.Error(d)
			}
			want(t, p.changes(), Key{})
		})
	})
	t.Run("a look that does not end is ended, and is an outage", func(t *testing.T) {
		p := &polled{by: byHash, takes: time.Hour}
		inABubble(t, p, func(t *testing.T) {
			p.until(pollTimeout)
			if n := p.lines("deadline exceeded"); n != 1 {
				t.Errorf("%d lines:\n%s", n, &p.log)
			}
		})
	})
	t.Run("a slow source is looked at for a tenth of the time", func(t *testing.T) {
		p := &polled{by: byHash, takes: time.Second}
		inABubble(t, p, func(t *testing.T) {
			p.until(25 * time.Second)
			if d := cmp.Diff([]time.Duration{0, 10 * time.Second, 20 * time.Second}, p.reads); d != "" {
				t.Error(d)
			}
		})
	})
	t.Run("a source that takes very long is still looked at", func(t *testing.T) {
		p := &polled{by: byHash, takes: pollTimeout - time.Second}
		inABubble(t, p, func(t *testing.T) {
			p.until(pollTimeout + pollRarest)
			if len(p.reads) != 2 {
				t.Errorf("looks at %v", p.reads)
			}
		})
	})
	t.Run("fingerprints of another kind say that anything may have changed, and not that all has", func(t *testing.T) {
		p := &polled{by: byHash, texts: map[Key]string{a: "1", b: "1"}}
		inABubble(t, p, func(t *testing.T) {
			p.until(time.Second)
			p.changes()
			p.set(func() { p.by, p.texts = byText, map[Key]string{a: "one", b: "one"} })
			p.until(pollEvery)
			want(t, p.changes(), Key{})
			p.set(func() { p.texts[b] = "two" })
			p.until(2 * pollEvery)
			want(t, p.changes(), b)
		})
	})
	t.Run("it ends with its context, also within a look", func(t *testing.T) {
		p := &polled{by: byHash, takes: time.Hour}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				polling{read: p.read, every: pollEvery, log: slog.New(slog.NewTextHandler(&p.log, nil))}.run(ctx)
				close(ended)
			}()
			synctest.Wait()
			cancel()
			synctest.Wait()
			select {
			case <-ended:
			default:
				t.Error("it goes on")
			}
			if p.log.Len() != 0 {
				t.Errorf("the end is complained of: %s", &p.log)
			}
		})
	})
}
