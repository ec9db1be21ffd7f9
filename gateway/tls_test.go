package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// writePair writes a self-signed certificate with a serial number.
func writePair(t *testing.T, dir string, serial int64) config.TLS {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "gateway"},
		DNSNames: []string{"localhost"}, NotBefore: time.Unix(0, 0), NotAfter: time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := config.TLS{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	for name, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func serial(t *testing.T, c *tls.Certificate) int64 {
	t.Helper()
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.SerialNumber.Int64()
}

func TestCertificate(t *testing.T) {
	t.Run("none is configured", func(t *testing.T) {
		if c, err := gateway.LoadCertificate(config.TLS{}, slog.Default()); c != nil || err != nil {
			t.Errorf("%v %v", c, err)
		}
	})
	t.Run("a pair that cannot be read fails at start", func(t *testing.T) {
		if _, err := gateway.LoadCertificate(config.TLS{Cert: "/nowhere", Key: "/nowhere"}, slog.Default()); err == nil {
			t.Error("no error")
		}
	})
	t.Run("a changed pair is read anew, and a broken one keeps the one before", func(t *testing.T) {
		dir := t.TempDir()
		files := writePair(t, dir, 1)
		synctest.Test(t, func(t *testing.T) {
			log := &output.Buffer{}
			c, err := gateway.LoadCertificate(files, slog.New(slog.NewTextHandler(log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			writePair(t, dir, 2)
			if got := serial(t, c.Current()); got != 1 {
				t.Errorf("serial %d within the age of a look", got)
			}
			time.Sleep(time.Minute)
			if got := serial(t, c.Current()); got != 2 {
				t.Errorf("serial %d after the change", got)
			}
			if err := os.WriteFile(files.Key, []byte("half a key"), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if got := serial(t, c.Current()); got != 2 || !strings.Contains(log.String(), "the one before stays") {
				t.Errorf("serial %d, log %s", got, log.String())
			}
			writePair(t, dir, 3)
			time.Sleep(time.Minute)
			if got := serial(t, c.Current()); got != 3 {
				t.Errorf("serial %d once it is whole", got)
			}
		})
	})
	t.Run("both listeners speak TLS", func(t *testing.T) {
		certificate, err := gateway.LoadCertificate(writePair(t, t.TempDir(), 7), slog.Default())
		if err != nil {
			t.Fatal(err)
		}
		p := serve(t, gatewayConfig(), func(o *gateway.Options) { o.Certificate = certificate })
		for _, addr := range []string{p.ClientAddr(), p.InternalAddr()} {
			conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // self-signed; looked at below
			if err != nil {
				t.Fatal(err)
			}
			if got := conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != 7 {
				t.Errorf("serial %d", got)
			}
			_ = conn.Close()
		}
	})
}

func TestMetadata(t *testing.T) {
	jwt := func(audience string) *config.JWT {
		// Nobody answers there; the keys are not what this is about.
		return &config.JWT{Issuer: "https://id.example", Audience: audience, JWKSURL: "http://127.0.0.1:1/jwks"}
	}
	const path = "/mcp/acme/thesis/@u7/browser"
	for _, x := range []struct {
		name, public, audience, base string
	}{
		{"the configured address counts", "https://gw.example/", "https://other.example/mcp", "https://gw.example"},
		{"an audience that is an address says where the gateway is", "", "https://gw.example/mcp", "https://gw.example"},
		{"a gateway on loopback is where it listens", "", "gateway", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := gatewayConfig()
			c.PublicURL, c.Identity.JWT = x.public, jwt(x.audience)
			p := serve(t, c, nil)
			base := x.base
			if base == "" {
				base = p.url
			}
			got := send(t, "GET", p.url+"/.well-known/oauth-protected-resource"+path, "", "Host: localhost")
			var doc map[string]any
			if err := json.Unmarshal([]byte(got.body), &doc); err != nil || got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			want := map[string]any{"resource": base + path, "authorization_servers": []any{"https://id.example"},
				"bearer_methods_supported": []any{"header"}, "resource_name": "mcp-lease-gateway"}
			if d := cmp.Diff(want, doc); d != "" {
				t.Error(d)
			}
			got = send(t, "POST", p.url+path, "", "Authorization: Bearer nonsense")
			challenge := got.header.Get("WWW-Authenticate")
			metadata := `resource_metadata="` + base + "/.well-known/oauth-protected-resource" + path + `"`
			if got.status != 401 || !strings.HasPrefix(challenge, "Bearer ") || !strings.Contains(challenge, metadata) || !strings.Contains(challenge, `error="invalid_token"`) {
				t.Errorf("%d %s", got.status, challenge)
			}
			elsewhere := strings.ReplaceAll(path, "acme", "umbrella")
			got = send(t, "POST", p.url+elsewhere, "", "Authorization: Bearer brain-secret")
			challenge = got.header.Get("WWW-Authenticate")
			if got.status != 403 || !strings.Contains(challenge, strings.ReplaceAll(metadata, "acme", "umbrella")) || !strings.Contains(challenge, `error="insufficient_scope"`) {
				t.Errorf("a key of another tenant: %d %s", got.status, challenge)
			}
		})
	}
	t.Run("there is none for what is no MCP server", func(t *testing.T) {
		c := gatewayConfig()
		c.Identity.JWT = jwt("https://gw.example/mcp")
		p := serve(t, c, nil)
		for _, path := range []string{"", "/mcp/acme/thesis", "/tex/acme/thesis/x", "/mcp/acme/../browser"} {
			if got := send(t, "GET", p.url+"/.well-known/oauth-protected-resource"+path, ""); got.status != 404 {
				t.Errorf("%s: %d", path, got.status)
			}
		}
	})
}
