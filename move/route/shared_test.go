//go:build unix

package route

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
)

// tokenize answers as vLLM does; a token is a byte.
func tokenize(w http.ResponseWriter, r *http.Request) {
	var q struct{ Model, Prompt string }
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Model != "parrot" {
		http.Error(w, fmt.Sprint(q, err), http.StatusInternalServerError)
		return
	}
	var tokens []int
	for _, b := range []byte(q.Prompt) {
		tokens = append(tokens, int(b))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"count": len(tokens), "max_model_len": 1 << 20, "tokens": tokens})
}

// A prompt whose beginning the shared cache has leaves the busy engine that knows it, and one that only that engine knows stays.
func TestSharedCache(t *testing.T) {
	o := kvcache.DefaultOptions()
	o.Memory, o.Block = 1<<20, 4096
	cache, err := kvcache.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	server := httptest.NewServer(kvcache.NewServer(cache, "", "").Handler())
	defer server.Close()
	at := server.Listener.Addr().String()
	f := newFront(t, 2, Options{Cache: at, Look: 20 * time.Second})
	// An answer that is here weighs on no engine any more.
	ask := func(prompt string) int {
		pid := f.ask(t, prompt)
		for _, e := range f.Status().Engines {
			if e.Waiting != 0 {
				t.Errorf("engine %s has %d bytes to do behind its answer", e.Engine, e.Waiting)
			}
		}
		return pid
	}
	stored, alone := conversation(1, 30), conversation(2, 30)

	// An engine stores the first prompt's blocks, under the names of python/weft/vllm.py, and leaves its note.
	chain, err := kv.NewChain(kv.VLLM, "0", 16)
	if err != nil {
		t.Fatal(err)
	}
	client := kvcache.Dial(at, "", chain.Print())
	defer client.Close()
	var tokens []uint32
	for _, b := range []byte(stored) {
		tokens = append(tokens, uint32(b))
	}
	hashes, err := chain.Hashes(tokens, kv.Extra{})
	if err != nil {
		t.Fatal(err)
	}
	names, blocks := make([]kv.Hash, len(hashes)), make([][]byte, len(hashes))
	for i, h := range hashes {
		names[i], blocks[i] = nameOf("parrot|None|bf16|auto|heads|8|1|0.0|"+h.String()), []byte("block")
	}
	for _, x := range []struct {
		names  []kv.Hash
		blocks [][]byte
	}{{names, blocks}, {[]kv.Hash{nameOf("weft.vllm note|parrot")},
		[][]byte{[]byte(`{"space": "parrot|None|bf16|auto|heads|8|1", "block": 16, "seed": "0"}`)}}} {
		if n, err := client.Put(t.Context(), x.names, 0, x.blocks); err != nil || n != len(x.names) {
			t.Fatal(n, err)
		}
	}

	first := map[string]int{}
	for _, prompt := range []string{stored, alone} {
		first[prompt] = ask(prompt)
	}
	for _, prompt := range []string{stored, alone} {
		// The engine that knows the prompt has other work, half of what computing the prompt takes.
		f.mu.Lock()
		var busy *engine
		for _, e := range f.engines {
			if e.seen.match(names64(prompt)) > 0 {
				busy = e
			}
		}
		busy.load += len(prompt) / 2
		f.mu.Unlock()
		next := f.ask(t, prompt)
		f.mu.Lock()
		busy.load -= len(prompt) / 2
		f.mu.Unlock()
		if again := ask(prompt); again == 0 {
			t.Fatal(again)
		}
		if moved := next != first[prompt]; moved != (prompt == stored) {
			t.Errorf("stored %v: it went from engine %d to %d", prompt == stored, first[prompt], next)
		}
	}
	s := f.Status().Cache
	if s == nil || s.Looks != 6 || s.Error != "" || s.Matched < 3*len(stored)*9/10 || s.Matched > 3*len(stored)+len(stored)/2 {
		t.Errorf("%+v; the prompt has %d bytes", s, len(stored))
	}

	// A cache that is gone costs nothing but its knowledge.
	server.CloseClientConnections()
	server.Close()
	if f.ask(t, alone) == 0 || f.Status().Cache.Error == "" {
		t.Errorf("%+v", f.Status().Cache)
	}
}

func names64(prompt string) []uint64 {
	text, _ := json.Marshal(prompt)
	return names([]byte("parrot\x00\x00\x00" + string(text)))
}

// The names of python/weft: VLLM.test_names in python/tests/kv_clients.py has the same two.
func TestNamesArePythons(t *testing.T) {
	for text, want := range map[string]string{
		"weft.vllm note|m": "e6b76b5f886e19e56b3787515d382b0dcbfb6bf701be046ee6b3758072f939d8",
		"m|None|bfloat16|auto|heads|8|1|0.0|" + strings.Repeat("ab", 32): "6a09131c7213fa288b45bca628f0d1c188893e877b69bcacd092d590840ea09b",
	} {
		if got := nameOf(text).String(); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
