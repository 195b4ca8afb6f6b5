package cli_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/launch"
)

// The Python clients of transfers and of the cache service, with doubles of the engines that call them.
func TestPythonClients(t *testing.T) {
	if err := launch.Supported(); err != nil {
		t.Skip(err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	weft, err := exec.LookPath("weft")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	serve := exec.CommandContext(ctx, weft, "kv", "serve", "--listen", "127.0.0.1:0", "--memory", "16MiB", "--block", "64KiB")
	serve.WaitDelay = time.Second
	out, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		serve.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	at := regexp.MustCompile(`http://([0-9.:]+), `).FindStringSubmatch(line)
	if err != nil || at == nil {
		t.Fatalf("kv serve printed %q, %v", line, err)
	}
	go io.Copy(io.Discard, out)
	for _, script := range []string{"kv_clients.py", "kv_engines.py", "vllm_engine.py", "nixl_peers.py"} {
		tests := bounded.Within(t, 3*time.Minute, python, "../../python/tests/"+script)
		tests.Env = append(os.Environ(), "WEFT_PROGRAM="+weft, "WEFT_NIXL=process", "WEFT_KV="+at[1], "PYTHONDONTWRITEBYTECODE=1")
		if text, err := tests.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, text)
		}
	}
}
