//go:build unix

package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == asLean || os.Args[1] == asProxy || os.Args[1] == asPooled) {
		main()
		return
	}
	os.Exit(m.Run())
}

// A second plain proxy stands for the gateway: what is tried is the measuring.
func TestMeasuring(t *testing.T) {
	st := &stage{}
	t.Cleanup(st.tearDown)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if st.direct, err = st.helper("upstream", self, asLean, "-"); err != nil {
		t.Fatal(err)
	}
	if st.plain, err = st.helper("plain proxy", self, asProxy, "http://"+st.direct.addr); err != nil {
		t.Fatal(err)
	}
	if st.pooled, err = st.helper("with a pool", self, asPooled, "http://"+st.direct.addr); err != nil {
		t.Fatal(err)
	}
	if st.lease, err = st.helper("gateway", self, asProxy, "http://"+st.direct.addr); err != nil {
		t.Fatal(err)
	}
	o := options{sessions: []int{1, 3}, rounds: 1, duration: 50 * time.Millisecond, direct: true}
	if err := measureCalls(t.Context(), o, st); err != nil {
		t.Error(err)
	}
	if err := measureLarge(t.Context(), o, st); err != nil {
		t.Error(err)
	}
	if _, err := round(t.Context(), target{name: "nobody", addr: "127.0.0.1:1", path: "/"}, "small", 1, time.Millisecond); err == nil {
		t.Error("a target that is not there gave figures")
	}
}

func TestAVerdictSaysWhetherTheAimIsReached(t *testing.T) {
	for _, c := range []struct {
		got, aim float64
		atLeast  bool
		says     string
	}{
		{1.5, 1.3, true, "1.50 (≥ 1.3 ok"},
		{1.2, 1.3, true, "1.20 (≥ 1.3 missed"},
		{0.6, 0.7, false, "0.60 (≤ 0.7 ok"},
		{0.8, 0.7, false, "0.80 (≤ 0.7 missed"},
	} {
		if got := verdict(c.got, c.aim, c.atLeast); !strings.HasPrefix(got, c.says) {
			t.Errorf("got %q, want %q", got, c.says)
		}
	}
}
