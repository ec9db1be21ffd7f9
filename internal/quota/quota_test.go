package quota

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestNobodyTakesAll(t *testing.T) {
	fill := func(p *Pool, next func(i int) Key) (n int) {
		for p.Take(next(n), 1) {
			n++
		}
		return n
	}
	t.Run("a user gets a third, and another tenant and another user of the same one find room", func(t *testing.T) {
		p := New(func() int64 { return 12 })
		one := Of("acme", "thesis", "u1")
		if n := fill(p, func(int) Key { return one }); n != 4 {
			t.Errorf("one user took %d of 12", n)
		}
		if p.Take(Of("acme", "other", "u1"), 1) {
			t.Error("a user has a second share in another project")
		}
		if !p.Take(Of("acme", "thesis", "u2"), 1) || !p.Take(Of("beta", "thesis", "u1"), 1) {
			t.Error("a newcomer found no room")
		}
	})
	t.Run("a tenant of many users gets less than a half", func(t *testing.T) {
		p := New(func() int64 { return 100 })
		if n := fill(p, func(i int) Key { return Of("acme", "thesis", fmt.Sprint("u", i)) }); n >= 50 || n < 40 {
			t.Errorf("one tenant took %d of 100", n)
		}
		if !p.Take(Of("beta", "thesis", ""), 1) {
			t.Error("another tenant found no room")
		}
	})
	t.Run("where no user is known, a project has the share", func(t *testing.T) {
		p := New(func() int64 { return 12 })
		fill(p, func(int) Key { return Of("acme", "thesis", "") })
		if !p.Take(Of("acme", "other", ""), 1) {
			t.Error("another project found no room")
		}
	})
	t.Run("a limit of one serves one, and of zero nobody", func(t *testing.T) {
		limit := int64(1)
		p := New(func() int64 { return limit })
		if !p.Take(Of("acme", "thesis", "u"), 1) || p.Take(Of("beta", "thesis", "u"), 1) {
			t.Error("a limit of one did not serve exactly one")
		}
		limit = 0
		if New(func() int64 { return 0 }).Take(Of("acme", "thesis", "u"), 1) {
			t.Error("a limit of zero served somebody")
		}
	})
}

func TestWhatIsGivenBackIsNobodys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(0, 40).Draw(t, "limit")
		p := New(func() int64 { return limit })
		type taken struct {
			who Key
			n   int64
		}
		var all []taken
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			who := Of(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), "p", rapid.SampledFrom([]string{"", "u", "v"}).Draw(t, "user"))
			n := rapid.Int64Range(1, 5).Draw(t, "n")
			if fits := p.Fits(who, n); fits != p.Take(who, n) {
				t.Fatal("Fits and Take do not agree")
			} else if fits {
				all = append(all, taken{who, n})
			}
			if used, _ := p.Taken(); used > limit {
				t.Fatalf("%d of %d are taken", used, limit)
			}
		}
		for _, x := range all {
			p.Give(x.who, x.n)
		}
		if n, sharers := p.Taken(); n != 0 || sharers != 0 {
			t.Fatalf("%d are still taken by %d", n, sharers)
		}
	})
}
