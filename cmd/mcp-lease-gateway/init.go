package main

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/config/check"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
)

// starter has the configurations that init writes. They are examples that run, so
// the tests check and serve them.
//
//go:embed starter
var starter embed.FS

// The documents that every kind of starter has.
const (
	starterLease  = "documents/_vance/_tenant/_vance/config/lease/browser.yaml"
	starterServer = "documents/_vance/_tenant/_vance/server-tools/browser.yaml"
)

// starterFile is a file that init writes: an embedded one under another name.
type starterFile struct {
	from, to string
	mode     fs.FileMode
}

// starterKind is what init writes for one way to run the gateway, and what it says
// about it. In texts @NAME@ stands for a value that is made for this folder.
type starterKind struct {
	files []starterFile
	next  string
}

var starterKinds = map[string]starterKind{
	"local": {
		files: []starterFile{
			{"local/gateway.yaml", "gateway.yaml", 0o600}, // keys will stand here
			{"lease.yaml", starterLease, 0o640},
			{"browser-stdio.yaml", starterServer, 0o640},
		},
		next: `
Start it:          mcp-lease-gateway serve --config @DIR@/gateway.yaml
Point a client at: http://127.0.0.1:8080/mcp/dev/demo/browser
See who holds it:  mcp-lease-gateway lease list --config @DIR@/gateway.yaml
`,
	},
	"systemd": {
		files: []starterFile{
			{"systemd/gateway.yaml", "gateway.yaml", 0o644}, // for the service's user, which nobody knows before it starts
			{"systemd/mcp-lease-gateway.service", "mcp-lease-gateway.service", 0o644},
			{"session.key", "credentials/session.key", 0o600},
			{"internal.token", "credentials/internal.token", 0o600},
			{"lease.yaml", starterLease, 0o644},
			{"browser-stdio.yaml", starterServer, 0o644},
		},
		next: `
The unit expects the folder at /etc/mcp-lease-gateway and the program at /usr/local/bin.

Start it:          install -m 644 @DIR@/mcp-lease-gateway.service /etc/systemd/system/
                   systemctl daemon-reload && systemctl enable --now mcp-lease-gateway
Point a client at: http://127.0.0.1:8080/mcp/dev/demo/browser
                   with the header Authorization: Bearer @KEY@
                   (the key is shown this once; gateway.yaml has its SHA-256)
See who holds it:  mcp-lease-gateway lease list --config /etc/mcp-lease-gateway/gateway.yaml
`,
	},
	"docker": {
		files: []starterFile{
			{"docker/gateway.yaml", "gateway.yaml", 0o644}, // for the user 65532 of the image
			{"docker/environment", "environment", 0o600},   // read by docker, not in the container
			{"lease.yaml", starterLease, 0o644},
			{"browser-http.yaml", starterServer, 0o644},
		},
		next: `
Start it:          docker run -d --name mcp-lease-gateway --env-file @DIR@/environment \
                     -v @ABS@:/etc/mcp-lease-gateway:ro -v mcp-lease-gateway:/var/lib/mcp-lease-gateway \
                     --add-host host.docker.internal:host-gateway -p 127.0.0.1:8080:8080 \
                     --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges mcp-lease-gateway
Start a browser:   npx @playwright/mcp --headless --isolated --port 8931 --host 0.0.0.0 --allowed-hosts '*'
                   (0.0.0.0 is every address of this machine: keep others away from the port)
Point a client at: http://127.0.0.1:8080/mcp/dev/demo/browser
                   with the header Authorization: Bearer @KEY@
                   (the key is shown this once; gateway.yaml has its SHA-256)
See who holds it:  docker exec mcp-lease-gateway mcp-lease-gateway lease list --config /etc/mcp-lease-gateway/gateway.yaml
`,
	},
	"kubernetes": {
		files: []starterFile{
			{"kubernetes/values.yaml", "values.yaml", 0o644},
			{"kubernetes/secret.yaml", "secret.yaml", 0o600},
		},
		next: `
Put the connection string of your MongoDB into @DIR@/secret.yaml and your image into
@DIR@/values.yaml.

Start it:          kubectl create namespace mcp-lease-gateway
                   kubectl -n mcp-lease-gateway apply -f @DIR@/secret.yaml
                   helm -n mcp-lease-gateway install mcp-lease-gateway deploy/helm/mcp-lease-gateway -f @DIR@/values.yaml
Point a client at: http://mcp-lease-gateway.mcp-lease-gateway/mcp/dev/demo/browser   inside the cluster
                   with the header Authorization: Bearer @KEY@
                   (the key is shown this once; values.yaml has its SHA-256)
See who holds it:  kubectl -n mcp-lease-gateway exec deployment/mcp-lease-gateway -- \
                     mcp-lease-gateway lease list --config /etc/mcp-lease-gateway/gateway.yaml
`,
	},
}

func newInitCommand() *cobra.Command {
	var kind string
	kinds := strings.Join(slices.Sorted(maps.Keys(starterKinds)), ", ")
	c := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a commented gateway.yaml, a server and a lease that run as they are",
		Long: `init writes a configuration into DIR (default: the current folder): gateway.yaml with a
comment at each key, the MCP server "browser" and the lease "browser" that it holds, and
what else the place that --for names needs to start it. It says how, and where a client
finds it. It replaces no file.`,
		Example: `  mcp-lease-gateway init my-gateway && mcp-lease-gateway serve --config my-gateway/gateway.yaml
  mcp-lease-gateway init --for systemd /etc/mcp-lease-gateway`,
		Args: wrongUsage(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			k, ok := starterKinds[kind]
			if !ok {
				return &codeError{codeUsage, fmt.Errorf("--for is one of %s", kinds)}
			}
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			return writeStarter(c.OutOrStdout(), dir, kind, k)
		},
	}
	c.Flags().StringVar(&kind, "for", "local", "where the gateway will run: "+kinds)
	return c
}

// writeStarter writes the files of a kind into dir and says what to do with them.
// It looks first whether one is in the way, so that it writes all or nothing.
func writeStarter(out io.Writer, dir, kind string, k starterKind) error {
	for _, f := range k.files {
		if _, err := os.Lstat(filepath.Join(dir, f.to)); err == nil {
			return fmt.Errorf("%s is there already; init replaces nothing, so name another folder", filepath.Join(dir, f.to))
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	fill, err := starterValues(dir, kind)
	if err != nil {
		return err
	}
	for _, f := range k.files {
		text, err := starterText(f.from)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, f.to)
		if err := writeStarterFile(path, fill.Replace(text), f.mode); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, "wrote "+path); err != nil {
			return err
		}
	}
	_, err = fmt.Fprint(out, fill.Replace(k.next))
	if err == nil && (kind == "local" || kind == "systemd") {
		_, err = fmt.Fprint(out, browserAdvice(kind))
	}
	return err
}

// starterText is an embedded text; a secret that has a file of its own is nothing
// but the value that is made for it.
func starterText(from string) (string, error) {
	switch from {
	case "session.key":
		return "@SESSION_KEY@\n", nil
	case "internal.token":
		return "@INTERNAL_TOKEN@\n", nil
	}
	text, err := starter.ReadFile("starter/" + from)
	return string(text), err
}

// writeStarterFile writes a file and the folders above it. Whoever may read the
// file may pass the folders; the mode is exact, whatever the umask is.
func writeStarterFile(path, text string, mode fs.FileMode) error {
	folders := fs.FileMode(0o750)
	if mode&0o004 != 0 {
		folders = 0o755
	} else if mode == 0o600 {
		folders = 0o700
	}
	if err := mkdirAllExactly(filepath.Dir(path), folders); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// mkdirAllExactly is os.MkdirAll whose new folders have the mode whatever the
// umask is.
func mkdirAllExactly(dir string, mode fs.FileMode) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := mkdirAllExactly(filepath.Dir(dir), mode); err != nil {
		return err
	}
	if err := os.Mkdir(dir, mode); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

// starterValues makes the values of one folder: keys of its own and what this
// machine has.
func starterValues(dir, kind string) (*strings.Replacer, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	key := hex.EncodeToString(randomBytes(32))
	sum := sha256.Sum256([]byte(key))
	cache, url, browser := "${HOME}/.cache/mcp-lease-gateway-npm", "${BROWSER_URL:-http://host.docker.internal:8931/mcp}", ""
	if kind == "systemd" {
		cache = "${CACHE_DIRECTORY:-/var/cache/mcp-lease-gateway}/npm"
	}
	if kind == "kubernetes" {
		url = "http://browsers:8931/mcp"
	}
	if path := chromiumInstead(); path != "" {
		browser = ", --executable-path, " + path
	}
	values := []string{
		"@DIR@", filepath.Clean(dir), "@ABS@", abs,
		"@KEY@", key, "@KEY_SHA256@", hex.EncodeToString(sum[:]),
		"@SESSION_KEY@", base64.StdEncoding.EncodeToString(randomBytes(seal.KeySize)),
		"@INTERNAL_TOKEN@", hex.EncodeToString(randomBytes(32)),
		"@CACHE@", cache, "@URL@", url, "@BROWSER@", browser,
	}
	for name, from := range map[string]string{"@LEASE@": "lease.yaml", "@SERVER@": "browser-http.yaml"} {
		text, err := starterText(from)
		if err != nil {
			return nil, err
		}
		text = strings.NewReplacer(values...).Replace(strings.TrimSuffix(text, "\n"))
		values = append(values, name, "    "+strings.ReplaceAll(text, "\n", "\n    "))
	}
	return strings.NewReplacer(values...), nil
}

// chromiumInstead is the browser to name to Playwright where Google Chrome, which
// it would take, is not there.
func chromiumInstead() string {
	if _, err := os.Stat(check.ChromePath); err == nil {
		return ""
	}
	for _, name := range []string{"chromium", "chromium-browser"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// browserAdvice is what is missing here for the starter's server to run.
func browserAdvice(kind string) string {
	var advice []string
	if _, err := exec.LookPath("npx"); err != nil {
		advice = append(advice, "npx is not on PATH here: install Node, or change the server's command.")
	}
	if _, err := os.Stat(check.ChromePath); err != nil && chromiumInstead() == "" {
		advice = append(advice, "There is neither Google Chrome nor Chromium here: install one, and where it is Chromium",
			"add --executable-path and its path to the server's command.")
	}
	if kind == "local" && os.Geteuid() == 0 {
		advice = append(advice, "You are root: Chrome does not start for root without --no-sandbox. Run the gateway as another user.")
	}
	if advice == nil {
		return ""
	}
	return "\nBefore the first call:\n  " + strings.Join(advice, "\n  ") + "\n"
}
