package config

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// MaxSize is the longest gateway.yaml in bytes.
const MaxSize = 1 << 20

// Problem is one thing that is wrong with a file, with file, line and key.
type Problem = strictyaml.Problem

// Problems is the error of Load: everything that is wrong, in the order of the
// file.
type Problems = strictyaml.Problems

// Load reads and checks gateway.yaml. LookupEnv is os.LookupEnv or a stand-in.
// The error is a Problems. Load has no effects: a reload calls it again and
// keeps the old Gateway where it fails.
//
// On the embedded store session keys and internal token may be missing; they
// are made at start.
func Load(path string, lookupEnv func(string) (string, bool)) (*Gateway, error) {
	text, err := ReadFile(path, MaxSize)
	if err != nil {
		return nil, Problems{{File: path, What: "the file cannot be read: " + reason(err)}}
	}
	return Parse(path, text, lookupEnv)
}

// Parse is Load for a text that has been read; path says where it stands, and
// what relative paths in it are relative to.
func Parse(path string, text []byte, lookupEnv func(string) (string, bool)) (*Gateway, error) {
	return parse(path, text, lookupEnv, false)
}

// ParsePart is Parse for a file of which only some sections are left, for who
// looks at the store and serves nobody: it does not ask for what only serving
// needs.
func ParsePart(path string, text []byte, lookupEnv func(string) (string, bool)) (*Gateway, error) {
	return parse(path, text, lookupEnv, true)
}

func parse(path string, text []byte, lookupEnv func(string) (string, bool), part bool) (*Gateway, error) {
	dir := filepath.Dir(path)
	doc := strictyaml.Parse(path, text, Variables(dir, lookupEnv))
	g := &Gateway{Path: path}
	strictyaml.Defaults(g)
	if doc.Root != nil {
		strictyaml.Decode(doc, g, strictyaml.Strict)
		c := &checker{doc, g, part}
		c.all()
		c.warnings()
	}
	if err := doc.Problems().Err(); err != nil {
		return nil, err
	}
	g.Warnings = doc.Warnings()
	for _, p := range []*string{&g.TLS.Cert, &g.TLS.Key, &g.Store.Path, &g.Documents.Dir, &g.Documents.Secrets, &g.Telemetry.Audit} {
		*p = below(dir, *p)
	}
	return g, nil
}

// Variables is what ${…} means in gateway.yaml and in system and bundled
// documents: the environment, and files below dir or at absolute paths.
func Variables(dir string, lookupEnv func(string) (string, bool)) *strictyaml.Variables {
	return &strictyaml.Variables{
		LookupEnv: lookupEnv,
		ReadFile: func(path string) ([]byte, error) {
			text, err := ReadFile(below(dir, path), 64<<10)
			if err != nil {
				return nil, fmt.Errorf("%s", reason(err))
			}
			return text, nil
		},
	}
}

// ReadFile reads a regular file of at most limit bytes. A pipe or device, which
// could keep a start or a reload waiting, is refused without being read.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	// One byte more, so that a file that is too long is seen to be so.
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		return nil, fmt.Errorf("it is longer than %d KiB", limit>>10)
	}
	return text, err
}

// reason is an error without the path, which stands before it already.
func reason(err error) string {
	if pe, ok := err.(*os.PathError); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

func below(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// splitHostPort is net.SplitHostPort with a port that is a number.
func splitHostPort(s string) (host string, port int, ok bool) {
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(p, 10, 16)
	return host, int(n), err == nil
}

func joinHostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// everyAddress reports whether a listener's host is all of the machine's.
func everyAddress(host string) bool {
	if host == "" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsUnspecified()
}
