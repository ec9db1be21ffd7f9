package main

import (
	"net"
	"strings"
	"testing"
	"time"
)

// TestAStoreThatIsNotThereIsNamedSoon asks a MongoDB where nothing listens.
func TestAStoreThatIsNotThereIsNamedSoon(t *testing.T) {
	for _, timeout := range []string{"1s", "30s"} {
		t.Run("within "+timeout, func(t *testing.T) {
			t.Parallel()
			b := newOperatorBench(t, "mongodb")
			at := closedPort(t)
			b.conf.Store.URI, b.conf.Store.Database = "mongodb://gateway:hunter2@"+at+"/", "leases"
			b.open = openStore
			began := time.Now()
			code, out, errs := b.run("counters", "--timeout", timeout)
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("it took %s", took)
			}
			for _, want := range []string{"lease store cannot be reached", "database leases", at, "connection refused"} {
				if !strings.Contains(errs, want) {
					t.Errorf("lacks %q: %s", want, errs)
				}
			}
			if code != 4 || out != "" || strings.Contains(errs, "hunter2") || strings.Contains(errs, "deadline") {
				t.Errorf("%d %q %q", code, out, errs)
			}
		})
	}
}

// TestAPodThatDoesNotAnswerIsNamed asks one that takes connections and is frozen.
func TestAPodThatDoesNotAnswerIsNamed(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b.conf.Pod.Endpoint = l.Addr().String()
	code, _, errs := b.run("sweep", "--timeout", "300ms")
	if code != 4 || !strings.Contains(errs, l.Addr().String()) || !strings.Contains(errs, "--timeout 300ms") || !strings.Contains(errs, "what it has done") {
		t.Errorf("%d %s", code, errs)
	}
}
