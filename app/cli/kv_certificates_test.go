package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/run/launch"
)

// authority signs certificates, as an operator's would.
type authority struct {
	t    *testing.T
	key  ed25519.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	raw, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return authority{t, key, cert}
}

// folder is what its holder is given: ca.pem of believed, and a certificate with URIs that ends then.
func (a authority) folder(believed authority, until time.Time, uris ...string) string {
	a.t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			a.t.Fatal(err)
		}
		of.URIs = append(of.URIs, u)
	}
	raw, err := x509.CreateCertificate(rand.Reader, of, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	for name, block := range map[string]*pem.Block{"ca.pem": {Type: "CERTIFICATE", Bytes: believed.cert.Raw},
		"cert.pem": {Type: "CERTIFICATE", Bytes: raw}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return dir
}

// A tenant's certificate opens what its token opens, for the agent that it names, and nothing else. Go, Python and the command line use it.
func TestTenantsByCertificate(t *testing.T) {
	if err := launch.Supported(); err != nil {
		t.Skip(err)
	}
	ca, other, later := newAuthority(t), newAuthority(t), time.Now().Add(time.Hour)
	tenants := filepath.Join(t.TempDir(), "tenants.json")
	if err := os.WriteFile(tenants,
		[]byte(`[{"name": "alice", "token": "alices-secret", "quota": 65536}, {"name": "mallory", "token": "mallorys-secret", "quota": 65536}]`),
		0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	cmd := exec.CommandContext(ctx, "weft", "kv", "serve", "--listen", "127.0.0.1:0", "--memory", "128KiB", "--block", "4KiB", "--name", "c1",
		"--tenants", tenants, "--tls", ca.folder(ca, later))
	cmd.Env = append(os.Environ(), "WEFT_TOKEN="+operator)
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	at := regexp.MustCompile(`https://([0-9.:]+), `).FindStringSubmatch(line)
	if err != nil || at == nil {
		t.Fatalf("kv serve printed %q, %v", line, err)
	}
	hers := ca.folder(ca, later, "spiffe://example.org/tenant/alice")
	dial := func(folder, token string) *kvcache.Client {
		_, config, err := kvcache.Certificates(folder)
		if err != nil {
			t.Fatal(err)
		}
		c := kvcache.DialTLS(at[1], token, "", config)
		t.Cleanup(c.Close)
		return c
	}
	list, _ := keys("alice's prompt", 3)
	data := [][]byte{bytes.Repeat([]byte("A"), blockBytes), bytes.Repeat([]byte("B"), blockBytes), bytes.Repeat([]byte("C"), blockBytes)}
	if n, err := dial(hers, "").Put(ctx, list, 0, data); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	spiffe := func(path string) string { return ca.folder(ca, later, "spiffe://example.org/"+path) }
	for what, x := range map[string]struct {
		folder, token string
		blocks        int    // that are found; -1: refused
		why           string // of a refusal
	}{
		"Alice's certificate":                 {hers, "", 3, ""},
		"Alice's certificate and token":       {hers, alice, 3, ""},
		"Alice's token":                       {ca.folder(ca, later), alice, 3, ""},
		"Mallory's certificate":               {spiffe("tenant/mallory"), "", 0, ""},
		"Mallory's certificate, her token":    {spiffe("tenant/mallory"), alice, -1, "401"},
		"Alice's certificate, another token":  {hers, mallory, -1, "401"},
		"Alice's certificate, a wrong token":  {hers, "guess", -1, "401"},
		"a certificate of nobody":             {spiffe("tenant/bob"), "", -1, "401"},
		"a certificate without a tenant":      {spiffe("host/alice"), "", -1, "401"},
		"a tenant and more":                   {spiffe("tenant/alice/../mallory"), "", -1, "401"},
		"two tenants":                         {ca.folder(ca, later, "spiffe://x/tenant/mallory", "spiffe://x/tenant/alice"), "", -1, "401"},
		"a tenant by another scheme":          {ca.folder(ca, later, "https://x/tenant/alice"), "", -1, "401"},
		"a certificate that is over":          {ca.folder(ca, time.Now().Add(-time.Minute), "spiffe://x/tenant/alice"), "", -1, "certificate"},
		"a certificate of somebody else's":    {other.folder(ca, later, "spiffe://x/tenant/alice"), "", -1, "certificate"},
		"who believes another authority":      {ca.folder(other, later, "spiffe://x/tenant/alice"), "", -1, "certificate"},
		"Alice's certificate, caches' secret": {hers, operator, -1, "401"},
	} {
		where, err := dial(x.folder, x.token).Match(ctx, list)
		if x.blocks >= 0 && (err != nil || len(where) != x.blocks) || x.blocks < 0 && (err == nil || !strings.Contains(err.Error(), x.why)) {
			t.Errorf("%s: %d blocks, %v; want %d %s", what, len(where), err, x.blocks, x.why)
		} else if x.blocks < 0 {
			attack(t, what, "refused (%s)", x.why)
		}
	}
	// What is for other caches stays shut for a tenant, also with their secret; without TLS nothing is told.
	_, config, err := kvcache.Certificates(hers)
	if err != nil {
		t.Fatal(err)
	}
	if code := changes(t, "https://"+at[1], config); code != 401 {
		t.Errorf("a tenant with the caches' secret: %d, want 401", code)
	} else {
		attack(t, "a tenant's certificate with the caches' secret: /v1/changes", "%d", code)
	}
	if _, err := kvcache.Dial(at[1], alice, "").Match(ctx, list); err == nil {
		t.Error("plain HTTP is answered")
	} else {
		attack(t, "plain HTTP where HTTPS is served", "refused")
	}
	// The command line and Python.
	stat := exec.CommandContext(ctx, "weft", "kv", "stat", at[1])
	stat.Env = append(os.Environ(), "WEFT_TOKEN=", "WEFT_KV_TLS="+hers)
	if text, err := stat.CombinedOutput(); err != nil || !strings.Contains(string(text), "tenant alice") ||
		strings.Contains(string(text), "mallory") {
		t.Errorf("kv stat: %v\n%s", err, text)
	}
	if python, err := exec.LookPath("python3"); err == nil {
		p := exec.CommandContext(ctx, python, "-c",
			"import sys; sys.path.insert(0, '../../python')\nfrom weft.kv import Client\nprint(Client(sys.argv[1]).match(sys.argv[2:]))",
			at[1], list[0].String(), list[1].String())
		p.Env = append(os.Environ(), "WEFT_TOKEN=", "WEFT_KV_TLS="+hers, "PYTHONDONTWRITEBYTECODE=1")
		if text, err := p.CombinedOutput(); err != nil || string(text) != "2\n" {
			t.Errorf("python: %v\n%s", err, text)
		}
	}
}

// changes asks for what other caches hear, with their secret.
func changes(t *testing.T, base string, config *tls.Config) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, base+"/v1/changes?generation=0&since=0", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+operator)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	defer c.CloseIdleConnections()
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	return a.StatusCode
}
