package cli_test

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/kv"
	"github.com/weft-fabric/weft/kvcache"
)

// A served cache keeps blocks, tells how it stands, and ends on SIGTERM; one that was killed has lost them all.
func TestKVServe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	slab := filepath.Join(t.TempDir(), "slab")
	start := func() (*exec.Cmd, string) {
		cmd := exec.CommandContext(ctx, "weft", "kv", "serve", "--listen", "127.0.0.1:0", "--memory", "64KiB", "--block", "4KiB", "--disk", slab, "--disk-size", "1MiB", "--store", t.TempDir(), "--pack", "8KiB")
		cmd.WaitDelay = time.Second
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		at := regexp.MustCompile(`http://([0-9.:]+), 16 blocks`).FindStringSubmatch(line)
		if err != nil || at == nil {
			t.Fatalf("it printed %q, %v", line, err)
		}
		go io.Copy(io.Discard, out)
		return cmd, at[1]
	}
	cmd, at := start()
	chain, _ := kv.NewChain(kv.VLLM, "0", 2)
	path, _ := chain.Hashes([]uint32{1, 2, 3, 4, 5, 6}, kv.Extra{})
	client := kvcache.Dial(at, "", chain.Print())
	defer client.Close()
	if n, err := client.Put(ctx, path, 0, [][]byte{[]byte("a"), []byte("b"), []byte("c")}); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if w, err := client.Match(ctx, path); len(w) != 3 || err != nil {
		t.Fatal(w, err)
	}
	code, out, errs := command("", "kv", "stat", at)
	if code != 0 || !strings.Contains(out, "tenant default  3 of 16 blocks in memory") || !strings.Contains(out, chain.Print()) {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	cmd.Process.Kill()
	cmd.Wait()
	cmd, at = start()
	again := kvcache.Dial(at, "", chain.Print())
	defer again.Close()
	if w, err := again.Match(ctx, path); len(w) != 0 || err != nil {
		t.Errorf("after a kill it has %v, %v", w, err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if code, _, errs := command("", "kv", "stat", "127.0.0.1:1"); code != 1 || !strings.Contains(errs, "kv cache at 127.0.0.1:1") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
