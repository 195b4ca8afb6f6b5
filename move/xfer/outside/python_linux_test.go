package outside

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/store"
	"go.etcd.io/etcd/server/v3/embed"
)

// TestMain is the agent itself where Python starts this program for it.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "xfer-agent" {
		if err := Main(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// NIXL's Python API on this agent, with an etcd and an object store. What needs none of them is tested with the weft program, too (package
// cli).
func TestNIXLInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s3, _ := store.Start(t)
	tests := bounded.Within(t, 2*time.Minute, python, "../../../python/tests/kv_clients.py", "NIXL")
	tests.Env = append(os.Environ(), "WEFT_PROGRAM="+self, "WEFT_S3="+s3, "NIXL_ETCD_ENDPOINTS="+startEtcd(t), "PYTHONDONTWRITEBYTECODE=1")
	if text, err := tests.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// startEtcd starts an etcd that ends with the test, and gives its address.
func startEtcd(t *testing.T) string {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = t.TempDir(), "fatal", []string{"/dev/null"}
	any := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = any, any
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	select {
	case <-e.Server.ReadyNotify():
	case <-ctx.Done():
		t.Fatal("etcd does not start")
	}
	return e.Clients[0].Addr().String()
}
