package gateway

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// certificateAge is how old a look at the certificate's files may be.
const certificateAge = 5 * time.Second

// Certificate is the certificate of both listeners, read anew when its files
// change. A pair that cannot be read keeps the one before.
type Certificate struct {
	files  config.TLS
	log    *slog.Logger
	mu     sync.Mutex
	pair   *tls.Certificate
	looked time.Time
	stamp  [2]fileStamp
}

type fileStamp struct {
	modified time.Time
	size     int64
}

// LoadCertificate reads the pair, or returns nil where none is configured.
func LoadCertificate(files config.TLS, log *slog.Logger) (*Certificate, error) {
	if files.Cert == "" && files.Key == "" {
		return nil, nil //nolint:nilnil // no certificate is a way to run: plain, behind an ingress
	}
	c := &Certificate{files: files, log: log}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	c.pair, c.stamp, c.looked = &pair, c.stamps(), time.Now()
	return c, nil
}

// Current returns the pair in force.
func (c *Certificate) Current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < certificateAge {
		return c.pair
	}
	c.looked = time.Now()
	stamp := c.stamps()
	if stamp == c.stamp {
		return c.pair
	}
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		// Cert and key are two files: between their two writes they do not match.
		// The next look tries again.
		c.log.Warn("the changed certificate cannot be read; the one before stays", "err", err)
		return c.pair
	}
	c.pair, c.stamp = &pair, stamp
	c.log.Info("the certificate was read anew")
	return c.pair
}

func (c *Certificate) stamps() (s [2]fileStamp) {
	for i, name := range []string{c.files.Cert, c.files.Key} {
		if info, err := os.Stat(name); err == nil {
			s[i] = fileStamp{info.ModTime(), info.Size()}
		}
	}
	return s
}

// config is the server side's, or nil for a nil Certificate.
func (c *Certificate) config() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.Current(), nil },
	}
}
