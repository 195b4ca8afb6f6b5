package auth

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// name is in the certificates that are made from a token.
const name = "weft"

// Certificates makes the configuration of connections that are encrypted. With "token" the certificates are made from the cluster's
// token: whoever knows it can make one, and nobody else. Anything else is a folder with ca.pem, the authorities
// whose certificates are accepted, and cert.pem and key.pem, those of this host. Any certificate of the authorities is
// accepted from any host, as ranks are reached by addresses that change.
func Certificates(from, token string) (*tls.Config, error) {
	if from == "token" || from == "1" {
		return tokenTLS(token)
	}
	info, err := os.Stat(from)
	switch {
	case err != nil:
		return nil, fmt.Errorf("want token, or a folder with ca.pem, cert.pem and key.pem: %w", err)
	case !info.IsDir():
		return nil, errors.New("want token, or a folder with ca.pem, cert.pem and key.pem; this is a file")
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(from, "cert.pem"), filepath.Join(from, "key.pem"))
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(filepath.Join(from, "ca.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", filepath.Join(from, "ca.pem"))
	}
	return mutual(cert, roots), nil
}

// mutual accepts any peer with a certificate of the roots.
func mutual(cert tls.Certificate, roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: roots, ClientCAs: roots, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // of the name alone: the chain is looked at below
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("no certificate")
			}
			o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
			for _, c := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(o)
			return err
		},
	}
}

// tokenTLS makes an authority whose key follows from the token, and a certificate of it for this process.
func tokenTLS(token string) (*tls.Config, error) {
	if token == "" {
		return nil, errors.New("there is no token to make certificates from: set WEFT_TOKEN to the same secret on all ranks")
	}
	authority := ed25519.NewKeyFromSeed(mac(token, "tls authority"))
	// The same on all ranks: nothing in it is random, and it never ends.
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name + " token"}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Unix(1<<35, 0),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1}}
	raw, err := x509.CreateCertificate(rand.Reader, of, of, authority.Public(), authority)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, err
	}
	public, own, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	mine := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: of.NotBefore, NotAfter: of.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		AuthorityKeyId: of.SubjectKeyId}
	if raw, err = x509.CreateCertificate(rand.Reader, mine, root, public, authority); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	return mutual(tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: crypto.PrivateKey(own)}, roots), nil
}
