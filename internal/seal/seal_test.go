package seal

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b}, KeySize) }

func ring(t *testing.T, keys ...[]byte) *Ring {
	t.Helper()
	r, err := NewRing(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOpensWhatItSealed(t *testing.T) {
	box := ring(t, key(1)).Box("session")
	s := box.Seal([]byte("hello"), []byte("/mcp/a"))
	got, err := box.Open(s, []byte("/mcp/a"))
	if err != nil || string(got) != "hello" {
		t.Fatalf("Open = %q, %v", got, err)
	}
	if s == box.Seal([]byte("hello"), []byte("/mcp/a")) {
		t.Error("two seals of one text are equal")
	}
}

func TestRefusesForeignTexts(t *testing.T) {
	r := ring(t, key(1))
	s := r.Box("session").Seal([]byte("hello"), []byte("/mcp/a"))
	for name, open := range map[string]func() ([]byte, error){
		"another purpose":    func() ([]byte, error) { return r.Box("cookie").Open(s, []byte("/mcp/a")) },
		"another route":      func() ([]byte, error) { return r.Box("session").Open(s, []byte("/mcp/b")) },
		"another key":        func() ([]byte, error) { return ring(t, key(2)).Box("session").Open(s, []byte("/mcp/a")) },
		"a flipped byte":     func() ([]byte, error) { return r.Box("session").Open(s[:20]+"A"+s[21:]+"", []byte("/mcp/b")) },
		"empty":              func() ([]byte, error) { return r.Box("session").Open("", nil) },
		"not base64":         func() ([]byte, error) { return r.Box("session").Open("***", nil) },
		"cut short":          func() ([]byte, error) { return r.Box("session").Open(s[:8], []byte("/mcp/a")) },
		"very long nonsense": func() ([]byte, error) { return r.Box("session").Open(strings.Repeat("A", 1<<16), nil) },
	} {
		if got, err := open(); !errors.Is(err, ErrSeal) || got != nil {
			t.Errorf("%s: Open = %q, %v; want ErrSeal", name, got, err)
		}
	}
}

func TestKeysRotate(t *testing.T) {
	old := ring(t, key(1)).Box("session").Seal([]byte("x"), nil)
	both := ring(t, key(2), key(1))
	if _, err := both.Box("session").Open(old, nil); err != nil {
		t.Errorf("a text sealed by the second key does not open: %v", err)
	}
	fresh := both.Box("session").Seal([]byte("x"), nil)
	if _, err := ring(t, key(1)).Box("session").Open(fresh, nil); err == nil {
		t.Error("the second key sealed; want the first")
	}
}

func TestRefusesKeysOfTheWrongSize(t *testing.T) {
	if _, err := NewRing(); err == nil {
		t.Error("no key was taken")
	}
	if _, err := NewRing(make([]byte, 16)); err == nil {
		t.Error("a short key was taken")
	}
}
