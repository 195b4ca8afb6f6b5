package kvcache

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// A certificate can stand in for a token. Its only URI says whom it speaks for, in SPIFFE's form:
//
//	spiffe://DOMAIN/tenant/NAME              any agent of the tenant
//	spiffe://DOMAIN/tenant/NAME/agent/AGENT  that agent's memory alone
//
// Whoever shows a certificate and a token must be the same by both. A certificate of a tenant never opens what is for other caches.

// certified reads whom a certificate speaks for; false if it names no tenant.
func certified(c *x509.Certificate) (Claim, bool) {
	if len(c.URIs) != 1 || c.URIs[0].Scheme != "spiffe" {
		return Claim{}, false
	}
	rest, ok := strings.CutPrefix(c.URIs[0].Path, "/tenant/")
	name, agent, bound := strings.Cut(rest, "/agent/")
	if !ok || name == "" || bound != (agent != "") || strings.Contains(name+agent, "/") {
		return Claim{}, false
	}
	return Claim{Tenant: name, Agent: agent}, true
}

// certificate is that of a call's client, if it has one of a tenant.
func certificate(r *http.Request) (Claim, bool) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return Claim{}, false
	}
	return certified(r.TLS.VerifiedChains[0][0])
}

// who finds out for whom a call speaks, by its certificate, its token, or both.
func (s *Server) who(r *http.Request) (Claim, bool) {
	by, shown := certificate(r)
	if !shown {
		return s.cache.Tenant(bearer(r))
	}
	if r.Header.Get("Authorization") == "" {
		return by, s.cache.tenants[by.Tenant] != nil
	}
	claim, ok := s.cache.Tenant(bearer(r))
	if !ok || claim.Tenant != by.Tenant || claim.Agent != "" && by.Agent != "" && claim.Agent != by.Agent {
		return Claim{}, false
	}
	if claim.Agent == "" {
		claim.Agent = by.Agent
	}
	return claim, true
}

// Certificates reads a folder with ca.pem, cert.pem and key.pem: the authorities that are believed, and the holder's own. A server takes
// clients with a certificate of the authorities and clients without any; a client wants a server with one, in the name by which it calls
// it.
func Certificates(dir string) (server, client *tls.Config, err error) {
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, nil, fmt.Errorf("%w; want a folder with ca.pem, cert.pem and key.pem", err)
	}
	pem, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, nil, fmt.Errorf("%w; want a folder with ca.pem, cert.pem and key.pem", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("%s has no certificate in PEM form", filepath.Join(dir, "ca.pem"))
	}
	server = &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: roots, ClientAuth: tls.VerifyClientCertIfGiven,
		MinVersion: tls.VersionTLS13}
	client = &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: roots, MinVersion: tls.VersionTLS13}
	return server, client, nil
}

// httpOver is a client's side of HTTP, encrypted if t is set, and the beginning of its addresses.
func httpOver(t *tls.Config, idle int) (*http.Client, string) {
	scheme := "http://"
	if t != nil {
		scheme = "https://"
	}
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: idle, TLSClientConfig: t}}, scheme
}
