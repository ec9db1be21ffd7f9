package document

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// memory is a source of texts; an error at a key is what Read returns.
type memory struct {
	mu    sync.Mutex
	texts map[Key]string
	errs  map[Key]error
	reads atomic.Int64
}

func (m *memory) set(k Key, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.texts == nil {
		m.texts = map[Key]string{}
	}
	m.texts[k] = text
}

func (m *memory) Read(_ context.Context, k Key) ([]byte, error) {
	m.reads.Add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.errs[k]; err != nil {
		return nil, err
	}
	if t, ok := m.texts[k]; ok {
		return []byte(t), nil
	}
	return nil, ErrNotFound
}

func (m *memory) Name(k Key) string { return k.Tenant + "/" + k.Project + "/" + k.Path }

func (m *memory) List(context.Context) ([]Key, error) {
	var keys []Key
	for k := range m.texts {
		keys = append(keys, k)
	}
	sortKeys(keys)
	return keys, nil
}

const docPath = "_vance/config/lease/browser.yaml"

func texts(fs []Found) map[Layer]string {
	out := map[Layer]string{}
	for _, f := range fs {
		out[f.Layer] = string(f.Text)
	}
	return out
}

func TestLayers(t *testing.T) {
	m := &memory{}
	m.set(Key{"_vance", "_tenant", docPath}, "system")
	m.set(Key{"acme", "_tenant", docPath}, "tenant")
	m.set(Key{"acme", "thesis", docPath}, "project")
	m.set(Key{"other", "thesis", docPath}, "foreign")
	c := NewCascade(m)
	for _, tc := range []struct {
		name, tenant, project string
		want                  map[Layer]string
	}{
		{"a project sees system, its tenant and itself", "acme", "thesis", map[Layer]string{System: "system", Tenant: "tenant", Project: "project"}},
		{"another project of the tenant does not see it", "acme", "paper", map[Layer]string{System: "system", Tenant: "tenant"}},
		{"another tenant sees none of it", "umbrella", "thesis", map[Layer]string{System: "system"}},
		{"the tenant's own project is its layer and no other", "acme", "_tenant", map[Layer]string{System: "system", Tenant: "tenant"}},
		{"the system's own project is its layer and no other", "_vance", "_tenant", map[Layer]string{System: "system"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := c.Layers(t.Context(), tc.tenant, tc.project, docPath)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, texts(got)); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("the bundled layer is the least specific", func(t *testing.T) {
		got, err := c.Layers(t.Context(), "acme", "thesis", "_vance/config/lease/tex.yaml")
		if err != nil || len(got) != 1 || got[0].Layer != Bundled {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("the first match is the most specific", func(t *testing.T) {
		f, err := c.First(t.Context(), "acme", "thesis", docPath)
		if err != nil || string(f.Text) != "project" {
			t.Errorf("%s, %v", f.Text, err)
		}
	})
	t.Run("nothing anywhere is not found", func(t *testing.T) {
		if _, err := c.First(t.Context(), "acme", "thesis", "_vance/x.yaml"); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
	t.Run("a layer that cannot be read fails the whole, and says which", func(t *testing.T) {
		broken := &memory{texts: m.texts, errs: map[Key]error{{"acme", "_tenant", docPath}: errors.New("disk on fire")}}
		_, err := NewCascade(broken).Layers(t.Context(), "acme", "thesis", docPath)
		var re *ReadError
		if !errors.As(err, &re) || re.Layer != Tenant || !strings.Contains(err.Error(), "disk on fire") {
			t.Errorf("%v", err)
		}
		if _, err := NewCascade(broken).First(t.Context(), "acme", "paper", docPath); !errors.As(err, &re) {
			t.Errorf("a layer that cannot be read was passed over: %v", err)
		}
	})
	t.Run("an earlier source wins, and its error is not hidden by a later one", func(t *testing.T) {
		first := &memory{}
		first.set(Key{"acme", "thesis", docPath}, "first")
		got, err := NewCascade(first, m).Layers(t.Context(), "acme", "thesis", docPath)
		if err != nil || texts(got)[Project] != "first" || texts(got)[Tenant] != "tenant" {
			t.Errorf("%v, %v", got, err)
		}
		first.errs = map[Key]error{{"acme", "thesis", docPath}: errors.New("unreachable")}
		if _, err := NewCascade(first, m).Layers(t.Context(), "acme", "thesis", docPath); err == nil {
			t.Error("the later source's text was taken")
		}
	})
	t.Run("a text over the limit is refused", func(t *testing.T) {
		long := &memory{}
		long.set(Key{"acme", "thesis", docPath}, strings.Repeat("#", MaxSize+1))
		if _, err := NewCascade(long).First(t.Context(), "acme", "thesis", docPath); !errors.Is(err, ErrTooLong) {
			t.Error(err)
		}
	})
	for _, k := range []Key{{"..", "p", docPath}, {"a/b", "p", docPath}, {"", "p", docPath}, {"a", "..", docPath}, {"a", "p", "../x"}, {"a", "p", "/etc/passwd"},
		{"a", "p", "x/../y"}, {"a", "p", "a//b"}, {"a", "p", ".hidden"}, {"a", "p", "x\x00"}, {"a", "p", "x\\..\\y"}, {"a", "p", ""},
		{"a", "p", strings.Repeat("d/", 9) + "x"}, {"a", "p", "a..b"}, {"*", "p", docPath}} {
		t.Run("the place "+strings.ToValidUTF8(k.Tenant+" "+k.Project+" "+k.Path, "?")+" is refused", func(t *testing.T) {
			if _, err := c.Layers(t.Context(), k.Tenant, k.Project, k.Path); err == nil || errors.Is(err, ErrNotFound) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCache(t *testing.T) {
	type fixture struct {
		*Cache[string]
		*Cascade
		loads int
		hold  chan struct{} // where set, a load waits for it
		text  string
		err   error
	}
	make := func() *fixture {
		f := &fixture{Cascade: NewCascade(), text: "old"}
		f.Cache = NewCache(f.Cascade, func(ctx context.Context, _, _, _ string) (string, error) {
			f.loads++
			text, err, hold := f.text, f.err, f.hold
			if hold != nil {
				select {
				case <-hold:
				case <-ctx.Done():
					return "", ctx.Err()
				}
			}
			return text, err
		})
		return f
	}
	get := func(t *testing.T, f *fixture, project, want string) {
		t.Helper()
		if got, err := f.Get(t.Context(), "acme", project, docPath); err != nil || got != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	t.Run("a value is loaded once, and anew when it is older than MaxAge", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := make()
			get(t, f, "thesis", "old")
			f.text = "new"
			time.Sleep(MaxAge - time.Millisecond)
			get(t, f, "thesis", "old")
			time.Sleep(time.Millisecond)
			get(t, f, "thesis", "new")
			if f.loads != 2 {
				t.Errorf("%d loads", f.loads)
			}
		})
	})
	t.Run("callers at the same time share one load, and the first one's end does not end it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := make()
			f.hold = chan0()
			ctx, cancel := context.WithCancel(t.Context())
			left := chan0()
			go func() {
				defer close(left)
				if _, err := f.Get(ctx, "acme", "thesis", docPath); !errors.Is(err, context.Canceled) {
					t.Errorf("the one who left got %v", err)
				}
			}()
			synctest.Wait()
			done := chan0()
			go func() { defer close(done); get(t, f, "thesis", "old") }()
			synctest.Wait()
			cancel()
			<-left
			close(f.hold)
			<-done
			if f.loads != 1 {
				t.Errorf("%d loads", f.loads)
			}
		})
	})
	t.Run("a load that began before a change is not given to whoever asks after it, and not kept", func(t *testing.T) {
		for _, wrong := range changeDuringLoad(t, noneLacks) {
			t.Error(wrong)
		}
	})
	t.Run("errors are not kept", func(t *testing.T) {
		f := make()
		f.err = errors.New("broken")
		if _, err := f.Get(t.Context(), "acme", "thesis", docPath); err == nil {
			t.Fatal("no error")
		}
		f.err = nil
		get(t, f, "thesis", "old")
	})
	for _, tc := range []struct {
		name          string
		change        Key
		thesis, paper string
	}{
		{"a project's change drops the project's value", Key{"acme", "thesis", docPath}, "new", "old"},
		{"a tenant's change drops all its projects' values", Key{"acme", "_tenant", docPath}, "new", "new"},
		{"a system change drops everybody's", Key{"_vance", "_tenant", docPath}, "new", "new"},
		{"a change without a path drops everything", Key{}, "new", "new"},
		{"another tenant's change drops nothing", Key{"umbrella", "_tenant", docPath}, "old", "old"},
		{"another document's change drops nothing", Key{"_vance", "_tenant", "_vance/config/lease/tex.yaml"}, "old", "old"},
		{"a change in the system tenant's other projects drops nothing", Key{"_vance", "thesis", docPath}, "old", "old"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := make()
			get(t, f, "thesis", "old")
			get(t, f, "paper", "old")
			f.text = "new"
			f.Changed(Change{tc.change})
			get(t, f, "thesis", tc.thesis)
			get(t, f, "paper", tc.paper)
		})
	}
	t.Run("callers cannot make it grow without bound", func(t *testing.T) {
		f := make()
		for i := range maxEntries + 50 {
			if _, err := f.Get(t.Context(), "acme", "p"+time.Duration(i).String(), docPath); err != nil {
				t.Fatal(err)
			}
		}
		if len(f.entries) > maxEntries {
			t.Errorf("%d entries", len(f.entries))
		}
	})
	t.Run("a subscriber that has left is not told", func(t *testing.T) {
		c := NewCascade()
		told := 0
		cancel := c.Subscribe(func(Change) { told++ })
		c.Changed(Change{})
		cancel()
		c.Changed(Change{})
		if told != 1 {
			t.Errorf("told %d times", told)
		}
	})
}

// lateLoad is a safeguard that a cache lacks against a load which a change
// overtook.
type lateLoad int

const (
	noneLacks lateLoad = iota
	keepsEnded
	sparesLoading
)

// changeDuringLoad changes a document while it is being loaded and returns what
// went wrong.
func changeDuringLoad(t *testing.T, lacks lateLoad) (wrong []string) {
	synctest.Test(t, func(t *testing.T) {
		key := Key{"acme", "thesis", docPath}
		cascade, hold, changed := NewCascade(), chan0(), atomic.Bool{}
		var loads atomic.Int32
		var c *Cache[string]
		locked := func(change func()) *entry[string] {
			c.mu.Lock()
			defer c.mu.Unlock()
			if change != nil {
				change()
			}
			return c.entries[key]
		}
		c = NewCache(cascade, func(context.Context, string, string, string) (string, error) {
			loads.Add(1)
			if lacks == keepsEnded {
				e := locked(nil)
				defer locked(func() { c.entries[key] = e })
			}
			if changed.Load() {
				return "new", nil
			}
			<-hold
			return "old", nil
		})
		ask := func() <-chan string {
			got := make(chan string, 1)
			go func() {
				text, err := c.Get(t.Context(), key.Tenant, key.Project, key.Path)
				if err != nil {
					text = err.Error()
				}
				got <- text
			}()
			synctest.Wait()
			return got
		}
		before := ask()
		loading := locked(nil)
		changed.Store(true)
		cascade.Changed(Change{key})
		if lacks == sparesLoading {
			locked(func() { c.entries[key] = loading })
		}
		after := ask()
		close(hold) // the load that began first ends last
		synctest.Wait()
		later := ask()
		for _, answer := range []struct{ who, got, want string }{
			{"before the change", <-before, "old"}, {"after the change", <-after, "new"}, {"after both loads", <-later, "new"},
		} {
			if answer.got != answer.want {
				wrong = append(wrong, "who asked "+answer.who+" got "+answer.got+", want "+answer.want)
			}
		}
		if n := loads.Load(); n != 2 {
			wrong = append(wrong, strconv.Itoa(int(n))+" loads, want 2")
		}
	})
	return wrong
}

// Each safeguard against a load that a change overtook is needed.
func TestLateLoadsAreNoticed(t *testing.T) {
	for lacks, name := range map[lateLoad]string{
		keepsEnded:    "a load that ends is kept, whatever happened meanwhile",
		sparesLoading: "a change drops what is loaded and not what is being loaded",
	} {
		t.Run(name, func(t *testing.T) {
			wrong := changeDuringLoad(t, lacks)
			if len(wrong) == 0 {
				t.Fatal("nobody notices")
			}
			t.Log(wrong[0])
		})
	}
}

func chan0() chan struct{} { return make(chan struct{}) }
