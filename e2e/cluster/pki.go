package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// writeKeys writes ca.crt, api.crt and api.key (the API server's, by the
// addresses it is reached at), and sa.key and sa.pub (which sign service
// accounts' tokens).
func writeKeys(dir string, addresses ...net.IP) error {
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "duesday-e2e"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	api := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: addresses,
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
	}
	caKey, err := newKey()
	if err != nil {
		return err
	}
	apiKey, err := newKey()
	if err != nil {
		return err
	}
	saKey, err := newKey()
	if err != nil {
		return err
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	apiDER, err := x509.CreateCertificate(rand.Reader, api, ca, apiKey.Public(), caKey)
	if err != nil {
		return err
	}
	apiKeyDER, err := x509.MarshalECPrivateKey(apiKey)
	if err != nil {
		return err
	}
	saKeyDER, err := x509.MarshalECPrivateKey(saKey)
	if err != nil {
		return err
	}
	saPubDER, err := x509.MarshalPKIXPublicKey(saKey.Public())
	if err != nil {
		return err
	}
	for name, block := range map[string]pem.Block{
		"ca.crt":  {Type: "CERTIFICATE", Bytes: caDER},
		"api.crt": {Type: "CERTIFICATE", Bytes: apiDER},
		"api.key": {Type: "EC PRIVATE KEY", Bytes: apiKeyDER},
		"sa.key":  {Type: "EC PRIVATE KEY", Bytes: saKeyDER},
		"sa.pub":  {Type: "PUBLIC KEY", Bytes: saPubDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&block), 0o600); err != nil {
			return fmt.Errorf("write keys: %w", err)
		}
	}
	return nil
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }
