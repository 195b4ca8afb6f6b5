package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
)

// serveSlab starts a cache of 16 blocks in memory with a slab, and gives its process and address.
func serveSlab(t *testing.T, ctx context.Context, slab string, more ...string) (*exec.Cmd, string) {
	t.Helper()
	args := []string{"kv", "serve", "--listen", "127.0.0.1:0", "--memory", "64KiB", "--block", "4KiB", "--disk", slab}
	cmd := exec.CommandContext(ctx, "weft", append(args, more...)...)
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

// A served cache keeps blocks, tells how it stands, and ends on SIGTERM; one that was killed has those that it had written to its slab.
func TestKVServe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	slab := filepath.Join(t.TempDir(), "slab")
	start := func() (*exec.Cmd, string) {
		return serveSlab(t, ctx, slab, "--disk-size", "1MiB", "--store", t.TempDir(), "--pack", "8KiB")
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
	for written := int64(0); written < 3; {
		s, err := client.Stat(ctx)
		if err != nil {
			t.Fatal(err)
		}
		written = s.Counters.Written
	}
	cmd.Process.Kill()
	cmd.Wait()
	cmd, at = start()
	again := kvcache.Dial(at, "", chain.Print())
	defer again.Close()
	if w, err := again.Match(ctx, path); len(w) != 3 || err != nil {
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

// A cache that is killed while it writes serves right blocks afterwards, and, with a byte of each slot changed while it was down, none of
// those.
func TestKVKilled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	slab := filepath.Join(t.TempDir(), "slab")
	start := func() (*exec.Cmd, *kvcache.Client) {
		cmd, at := serveSlab(t, ctx, slab, "--disk-size", "512KiB")
		return cmd, kvcache.Dial(at, "", "")
	}
	// A block holds its own name, over and over.
	name := func(i int) (h kv.Hash) { binary.BigEndian.PutUint64(h[8:], uint64(i)+1); return h }
	data := func(i int) []byte { h := name(i); return bytes.Repeat(h[:], 100+i%28) }
	served := func(c *kvcache.Client, upTo int) (n int) {
		for i := range upTo {
			k, err := c.Get(ctx, []kv.Hash{name(i)}, 0, func(_ int, got []byte) error {
				if !bytes.Equal(got, data(i)) {
					t.Errorf("block %d is served with other bytes", i)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		return n
	}
	r, next := rand.New(rand.NewPCG(3, 4)), 0
	for round := range bounded.Times(3, 30) {
		cmd, client := start()
		if n := served(client, next); round > 0 && n == 0 {
			t.Errorf("round %d: of %d blocks none is served", round, next)
		}
		// It is killed out of one goroutine while others store.
		stored, stop, failed := make(chan struct{}), make(chan struct{}), make(chan error, 4)
		var all sync.WaitGroup
		var number atomic.Int64
		number.Store(int64(next))
		for range 4 {
			all.Go(func() {
				for {
					i := int(number.Add(1)) - 1
					_, err := client.Put(ctx, []kv.Hash{name(i)}, 0, [][]byte{data(i)})
					if err != nil && strings.Contains(err.Error(), kvcache.ErrRoom.Error()) {
						continue // sixteen blocks of memory, and the disk is slower than four writers: the cache may refuse
					}
					if err != nil {
						failed <- err
						return
					}
					select {
					case stored <- struct{}{}:
					case <-stop:
					}
				}
			})
		}
		for range 100 + r.IntN(100) {
			select {
			case <-stored:
			case err := <-failed:
				t.Fatalf("round %d: a block is not stored: %v", round, err)
			}
		}
		close(stop)
		cmd.Process.Kill()
		cmd.Wait()
		all.Wait()
		client.Close()
		next = int(number.Load())
	}
	f, err := os.OpenFile(slab, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at := int64(4096 + 100); at < 512<<10; at += 8192 {
		b := make([]byte, 1)
		f.ReadAt(b, at)
		b[0] ^= 16
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	cmd, client := start()
	defer client.Close()
	if n := served(client, next); n != 0 {
		t.Errorf("%d blocks with a changed byte are served", n)
	}
	cmd.Process.Kill()
	cmd.Wait()
}

// A flag that is wrong, or that says nothing without another, is named before anything is opened.
func TestKVFlags(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	nobody, unknown := write("nobody.json", "[]"), write("unknown.json", `[{"name": "a", "token": "x", "qouta": 3}]`)
	trace := filepath.Join(dir, "trace.jsonl")
	if code, _, errs := command("", "kv", "trace", "--requests", "5", "-o", trace); code != 0 {
		t.Fatal(errs)
	}
	for _, line := range []string{
		"serve --memory 0", "serve --memory -1", "serve --memory many", "serve --block 0", "serve --block 2GiB --memory 1GiB",
		"serve --disk " + dir + "/no/slab", "serve --disk " + dir + "/slab --disk-size 1KiB", "serve --disk-size 1GiB",
		"serve --pack 0", "serve --pack 1MiB", "serve --policy fifo", "serve --store ftp://x", "serve --dirty 0", "serve --chain x",
		"serve --tenants " + dir + "/none", "serve --tenants " + nobody, "serve --tenants " + unknown,
		"serve --peer x", "serve --peer 127.0.0.1", "serve --peer 127.0.0.1:0", "serve --peer 127.0.0.1:99999", "serve --listen x",
		"serve --listen 127.0.0.1:99999",
		"serve --etcd nowhere", "serve --etcd 127.0.0.1:2379,x", "serve --prefix /x", "serve --etcd 127.0.0.1:2379 --prefix /",
		"serve --etcd 127.0.0.1:2379 --name=",
		"serve more", "stat x", "stat 127.0.0.1:0", "stat a b", "bench --blocks 1", "bench --for 0s",
		"trace --requests 0", "trace --rate 0", "trace --rate nan", "trace --turns inf", "trace --think -1", "trace --prompts 0",
		"trace --user 0", "trace --answer 0",
		"replay " + dir + "/none", "replay " + nobody, "replay " + trace + " --tiers 0", "replay " + trace + " --policy fifo",
		"replay " + trace + " --admit never",
		"replay " + trace + " --half-life -1", "replay " + trace + " --half-life nan", "replay " + trace + " --params 0",
		"replay " + trace + " --layers 0",
		"replay " + trace + " --width 0", "replay " + trace + " --flops 0",
	} {
		if code, out, errs := command("", append([]string{"kv"}, fields(line)...)...); code != 2 || errs == "" ||
			strings.Contains(errs, "panic") {
			t.Errorf("kv %s: exit %d, want 2: %s%s", line, code, out, errs)
		}
	}
}

// A quota is a size or a number of bytes.
func TestKVQuota(t *testing.T) {
	t.Setenv("WEFT_TOKEN", "of the caches")
	file := filepath.Join(t.TempDir(), "tenants.json")
	for text, want := range map[string]string{
		`"8MiB"`: "", `8388608`: "", `"8MB"`: "", `"9MiB"`: "quotas of 1 tenants are 9 MiB, memory is 8 MiB",
		`9437184`: "quotas of 1 tenants are 9 MiB, memory is 8 MiB", `"8 sheep"`: "quota: ", `8.5`: "number 8.5",
	} {
		if err := os.WriteFile(file, []byte(`[{"name": "a", "token": "x", "quota": `+text+`}]`), 0o600); err != nil {
			t.Fatal(err)
		}
		// The store is asked after the quotas were taken: one that is not there ends the command.
		code, _, errs := command("", "kv", "serve", "--memory", "8MiB", "--tenants", file, "--listen", "127.0.0.1:0", "--store",
			filepath.Join(file, "none"))
		if want == "" && (code != 1 || !strings.Contains(errs, "--store")) || want != "" && (code != 2 || !strings.Contains(errs, want)) {
			t.Errorf("quota %s: exit %d: %s", text, code, errs)
		}
	}
}

func TestServeFlags(t *testing.T) {
	for _, line := range []string{
		"--prefill -1", "--decode 0", "--decode 65", "--mode x", "--users -1", "--requests -1", "--prompt 0", "--prompt 600", "--answer 0",
		"--rate x", "--rate 0", "--path x", "--path gpu",
		"--patience -1s", "--patience 0s", "--alike -1", "--alike 1000", "--cache x", "--cache 0", "--cache 1KiB", "--compare --rounds 0",
		"--compare --prefill 0", "--rounds 3", "--model big",
		"--drill boom:1", "--drill kill:0", "--listen x", "--listen 127.0.0.1:99999", "--for -1s", "--tp 2",
	} {
		if code, out, errs := command("", append([]string{"up", "--serve"}, fields(line)...)...); code != 2 || errs == "" {
			t.Errorf("up --serve %s: exit %d, want 2: %s%s", line, code, out, errs)
		}
	}
	if code, _, errs := command("", "up", "--prefill", "2"); code != 2 {
		t.Errorf("exit %d: %s", code, errs)
	}
	if code, _, errs := command("", "up", "--serve", "--cache", "127.0.0.1:1"); code != 1 ||
		!strings.Contains(errs, "kv cache at 127.0.0.1:1") {
		t.Errorf("a cache that is not there: exit %d: %s", code, errs)
	}
}
