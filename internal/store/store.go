// Package store gives tests an object store: versitygw, a real server, where WEFT_VERSITYGW names its binary
// (make xfer-store builds one), else a fake in the test's process, which is no judge of uploads in parts.
package store

import (
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/weft-fabric/weft/internal/bounded"
)

// Bucket is there when the store is.
const Bucket = "weft"

const key, secret = "weftkey", "weftsecret"

// Start starts a store that ends with the test, and gives its address. Clients find credentials in the environment.
func Start(t *testing.T) (endpoint string, real bool) {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", key)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_REGION", "us-east-1")
	bin := os.Getenv("WEFT_VERSITYGW")
	if bin == "" {
		back := s3mem.New()
		if err := back.CreateBucket(Bucket); err != nil {
			t.Fatal(err)
		}
		fake := httptest.NewServer(gofakes3.New(back).Server())
		t.Cleanup(fake.Close)
		return fake.URL, false
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Bucket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cmd := bounded.Server(t, bin, "--access", key, "--secret", secret, "--port", addr, "posix", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) { // between looks at its port
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return "http://" + addr, true
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not listen at %s after 30 s", bin, addr)
		}
	}
}
