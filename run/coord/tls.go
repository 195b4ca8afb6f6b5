package coord

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// serverName is the name in a token's certificate, whatever the address is.
const serverName = "weft-coord"

// identity is a key and a certificate that follow from a token alone. Both ends of
// a connection show it and trust nothing else, so that each proves to the other
// that it knows the token, neither sends it, and what they say is encrypted. A
// token of few bits can be guessed from the public key: use 128 random ones.
func identity(token string) (cert []byte, key ed25519.PrivateKey, err error) {
	seed, err := hkdf.Key(sha256.New, []byte(token), nil, "weft coord identity 1", ed25519.SeedSize)
	if err != nil {
		return nil, nil, fmt.Errorf("coord: key of a token: %w", err)
	}
	key = ed25519.NewKeyFromSeed(seed)
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{serverName},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	cert, err = x509.CreateCertificate(nil, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("coord: certificate of a token: %w", err)
	}
	return cert, key, nil
}

// tokenTLS is a client's end under a token.
func tokenTLS(token string) (*tls.Config, error) {
	der, key, err := identity(token)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("coord: certificate of a token: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		ServerName:   serverName,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}},
		// The client puts the address in the place of the name, and the certificate
		// is for any address: instead of a chain and a name, the certificate itself
		// is compared. TLS has made sure that the server has its key.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 || !bytes.Equal(s.PeerCertificates[0].Raw, der) {
				return ErrToken
			}
			return nil
		},
	}, nil
}

// Files are certificates on disk, in PEM.
type Files struct {
	Cert, Key string // of this process
	CA        string // of the others
}

// writeIdentity leaves a token's certificate and key in a directory, where etcd
// reads them.
func writeIdentity(dir, token string) (Files, error) {
	der, key, err := identity(token)
	if err != nil {
		return Files{}, err
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Files{}, fmt.Errorf("coord: key of a token: %w", err)
	}
	f := Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "cert.pem")}
	for _, w := range []struct {
		name, kind string
		bytes      []byte
	}{{f.Cert, "CERTIFICATE", der}, {f.Key, "PRIVATE KEY", pkcs}} {
		if err := os.WriteFile(w.name, pem.EncodeToMemory(&pem.Block{Type: w.kind, Bytes: w.bytes}), 0o600); err != nil {
			return Files{}, fmt.Errorf("coord: %w", err)
		}
	}
	return f, nil
}

// Load is the client's end of certificates on disk.
func (f Files) Load() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.Cert != "" || f.Key != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("coord: certificate %q with key %q: %w", f.Cert, f.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if f.CA != "" {
		b, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("coord: certificate authority: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("coord: %s has no certificate in PEM form", f.CA)
		}
	}
	return c, nil
}

// proof is what a job's first record holds of its token: enough to tell another
// one, also in a cluster that many jobs share.
func proof(token, job string) string {
	if token == "" {
		return ""
	}
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte("weft coord job 1\x00" + job))
	return hex.EncodeToString(h.Sum(nil)[:16])
}
