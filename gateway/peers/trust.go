package peers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// ClientTLS is how a pod recognises another pod over TLS: by a certificate that
// is good for a name of its own certificate, or that is its own (all pods mount
// the same secret). The address that was dialled says nothing: pods are called
// by addresses that no certificate names. A self-signed certificate is trusted
// because it is the pod's own.
func ClientTLS(own func() *tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		//nolint:gosec // VerifyConnection below does the whole verification
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyPeer(own(), state.PeerCertificates)
		},
	}
}

func verifyPeer(own *tls.Certificate, chain []*x509.Certificate) error {
	if own == nil || len(own.Certificate) == 0 || len(chain) == 0 {
		return errors.New("peers: no certificate")
	}
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		return fmt.Errorf("peers: own certificate: %w", err)
	}
	if leaf.Equal(chain[0]) {
		return nil // and the handshake has proved that it has our key
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	for _, der := range own.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil && c.IsCA {
			roots.AddCert(c)
		}
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	names := leaf.DNSNames
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	err = errors.New("peers: own certificate has no names")
	for _, name := range names {
		if _, err = chain[0].Verify(x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: between}); err == nil {
			return nil
		}
	}
	return fmt.Errorf("peers: the pod's certificate is not one for our names: %w", err)
}
