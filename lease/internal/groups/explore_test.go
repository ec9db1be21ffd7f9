package groups

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// world is a store of documents that hold until they are revoked, and calls that
// touch them in groups. A run of it goes step by step: who arrives, what is
// revoked and which parked operation goes on, and how, is chosen from outside.
type world struct {
	mu       sync.Mutex
	clock    int // counts steps
	parked   []*operation
	inFlight int
	revoked  map[string]bool
	touched  map[string]int // when, by the clock
	errs     []string
	trace    []string
}

type operation struct {
	label string
	goOn  chan error
}

var errFailed = errors.New("the store does not answer")

func (w *world) step(label string, do func()) error {
	op := &operation{label, make(chan error, 1)}
	w.mu.Lock()
	w.parked = append(w.parked, op)
	w.mu.Unlock()
	err := <-op.goOn
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		do()
	}
	return err
}

func (w *world) complain(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, fmt.Sprintf(format, args...))
}

// update touches one document after the other, as an update of many does.
func (w *world) update(_ context.Context, all []string) (matched int, err error) {
	for _, t := range all {
		err := w.step("touch "+t, func() {
			if !w.revoked[t] {
				w.touched[t] = w.clock
				matched++
			}
		})
		if err != nil {
			return 0, err
		}
	}
	return matched, nil
}

func (w *world) which(_ context.Context, all []string) (held []string, err error) {
	err = w.step("look "+strings.Join(all, " "), func() {
		for _, t := range all {
			if !w.revoked[t] {
				held = append(held, t)
			}
		}
	})
	return held, err
}

func (w *world) run(ctx context.Context, all []string) (map[string]bool, error) {
	w.mu.Lock()
	w.inFlight++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.inFlight--
		w.mu.Unlock()
	}()
	return Matched(ctx, all, w.update, w.which)
}

// call is one call, judged by what it was told.
func (w *world) call(g *Groups[string], t string) {
	w.mu.Lock()
	arrived, gone := w.clock, w.revoked[t]
	w.mu.Unlock()
	yes, err := g.Do(context.Background(), t)
	w.mu.Lock()
	touched, goneNow := w.touched[t], w.revoked[t]
	w.mu.Unlock()
	switch {
	case err != nil:
	case yes && gone:
		w.complain("%s was revoked before the call arrived, and the answer is yes", t)
	case yes && touched <= arrived:
		w.complain("the answer for %s is yes, and nothing has touched it since the call arrived", t)
	case !yes && !goneNow:
		w.complain("the answer for %s is no, and it holds", t)
	}
}

// scene is what a run has: calls, what may be revoked at any time, and how many
// operations may fail.
type scene struct {
	calls    []string
	revoke   []string
	failures int
	atOnce   int
	most     int
}

// play makes one run by the choices of path, and the first ones behind its end.
// It returns how many there were at each step.
func (sc scene) play(t *testing.T, path []int) (options []int, errs, trace []string) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{revoked: map[string]bool{}, touched: map[string]int{}}
		g := New(Options{AtOnce: sc.atOnce, Most: sc.most, Timeout: time.Hour}, w.run)
		calls, revoke, failures := sc.calls, sc.revoke, sc.failures
		for {
			synctest.Wait()
			w.mu.Lock()
			if w.inFlight > sc.atOnce {
				w.errs = append(w.errs, fmt.Sprintf("%d operations at once", w.inFlight))
			}
			parked := slices.Clone(w.parked)
			w.mu.Unlock()
			var names []string
			var choices []func()
			choose := func(name string, do func()) { names, choices = append(names, name), append(choices, do) }
			if len(calls) > 0 {
				choose("arrives: "+calls[0], func() {
					t := calls[0]
					calls = calls[1:]
					go w.call(g, t)
				})
			}
			if len(revoke) > 0 {
				choose("revoked: "+revoke[0], func() {
					w.mu.Lock()
					w.revoked[revoke[0]] = true
					w.mu.Unlock()
					revoke = revoke[1:]
				})
			}
			for i, op := range parked {
				goOn := func(err error) {
					w.mu.Lock()
					w.parked = slices.Delete(w.parked, i, i+1)
					w.mu.Unlock()
					op.goOn <- err
				}
				choose(op.label, func() { goOn(nil) })
				if failures > 0 {
					choose(op.label+" fails", func() { failures--; goOn(errFailed) })
				}
			}
			if len(choices) == 0 {
				break
			}
			chosen := 0
			if len(options) < len(path) {
				chosen = path[len(options)]
			}
			options = append(options, len(choices))
			w.mu.Lock()
			w.clock++
			w.trace = append(w.trace, names[chosen])
			w.mu.Unlock()
			choices[chosen]()
		}
		errs, trace = w.errs, w.trace
	})
	return options, errs, trace
}

// TestEveryScheduleOfGroups runs every schedule of a few calls, with a revocation
// and a failing operation anywhere.
func TestEveryScheduleOfGroups(t *testing.T) {
	for name, sc := range map[string]scene{
		"three calls for two documents, one after the other":   {calls: []string{"a", "b", "a"}, revoke: []string{"a"}, failures: 1, atOnce: 1, most: 10},
		"three calls for two documents, two groups at once":    {calls: []string{"a", "b", "a"}, revoke: []string{"a"}, atOnce: 2, most: 10},
		"four calls for three documents, two in one operation": {calls: []string{"a", "b", "c", "b"}, revoke: []string{"b"}, atOnce: 1, most: 2},
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			for path := []int{}; path != nil; runs++ {
				options, errs, trace := sc.play(t, path)
				if len(errs) > 0 {
					t.Fatalf("%s\n%s", strings.Join(errs, "\n"), strings.Join(trace, "\n"))
				}
				for len(path) < len(options) {
					path = append(path, 0)
				}
				i := len(path) - 1
				for i >= 0 && path[i] == options[i]-1 {
					i--
				}
				if i < 0 {
					path = nil
				} else {
					path = append(path[:i], path[i]+1)
				}
			}
			t.Logf("%d schedules", runs)
		})
	}
}

func TestACallerThatLeavesIsNotWaitedWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked [][]string
		open := make(chan struct{})
		g := New(Options{AtOnce: 1, Most: 10, Timeout: time.Minute}, func(_ context.Context, all []string) (map[string]bool, error) {
			asked = append(asked, slices.Clone(all))
			<-open
			return map[string]bool{"a": true, "c": true}, nil
		})
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		stays := make(chan bool)
		go func() { _, err := g.Do(ctx, "a"); left <- err }()
		synctest.Wait()
		go func() { _, err := g.Do(ctx, "b"); left <- err }()
		go func() { yes, _ := g.Do(t.Context(), "c"); stays <- yes }()
		synctest.Wait()
		leave()
		for range 2 {
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		close(open)
		if !<-stays {
			t.Error("who stays has no answer")
		}
		if len(asked) != 2 || !slices.Equal(asked[1], []string{"c"}) {
			t.Errorf("asked for %v; who has left before its operation needs none", asked)
		}
	})
}

func TestAnOperationEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{AtOnce: 1, Most: 10, Timeout: time.Second}, func(ctx context.Context, _ []string) (map[string]bool, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if _, err := g.Do(t.Context(), "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
