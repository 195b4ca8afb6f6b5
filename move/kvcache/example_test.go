package kvcache_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/move/xfer"
)

// A worker stores the blocks of a prompt; another finds those that its own prompt shares.
func Example() {
	ctx := context.Background()
	o := kvcache.DefaultOptions()
	o.Memory, o.Block = 1<<20, 4096
	cache, err := kvcache.New(o)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	server := httptest.NewServer(kvcache.NewServer(cache, "", "").Handler())
	defer server.Close()

	chain, err := kv.NewChain(kv.VLLM, "0", 4) // blocks of 4 tokens; all workers have the same seed
	if err != nil {
		fmt.Println(err)
		return
	}
	client := kvcache.Dial(server.Listener.Addr().String(), "", chain.Print())
	defer client.Close()
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	path, _ := chain.Hashes(prompt, kv.Extra{})
	stored, err := client.Put(ctx, path, 0, [][]byte{[]byte("keys and values of 1 to 4"), []byte("of 5 to 8")})
	fmt.Println(stored, err)

	other, _ := chain.Hashes([]uint32{1, 2, 3, 4, 99, 99, 99, 99}, kv.Extra{})
	_, err = client.Get(ctx, other, 0, func(i int, data []byte) error {
		fmt.Printf("block %d: %s\n", i, data)
		return nil
	})
	fmt.Println(err)
	// Output:
	// 2 <nil>
	// block 0: keys and values of 1 to 4
	// <nil>
}

// A worker with an agent has blocks written into its own memory, where its layout wants them.
func ExampleClient_GetInto() {
	ctx := context.Background()
	mine, err := xfer.New(xfer.Config{Name: "worker"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mine.Close()
	agent, err := xfer.New(xfer.Config{Name: "kv"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer agent.Close()
	o := kvcache.DefaultOptions()
	o.Memory, o.Block, o.Agent = 1<<20, 4096, agent
	cache, err := kvcache.New(o)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()
	server := httptest.NewServer(kvcache.NewServer(cache, "", "").Handler())
	defer server.Close()
	client := kvcache.Dial(server.Listener.Addr().String(), "", "")
	defer client.Close()

	path := []kv.Hash{{1}}
	memory := []byte("..keys....values")
	stored, err := client.PutFrom(ctx, path, 0, mine, memory, [][]kvcache.Piece{{{Off: 2, Len: 4}, {Off: 10, Len: 6}}})
	fmt.Println(stored, err)
	into := []byte("................")
	got, _, err := client.GetInto(ctx, path, 0, mine, into, [][]kvcache.Piece{{{Off: 12, Len: 4}, {Off: 0, Len: 6}}})
	fmt.Println(got, err, string(into))
	// Output:
	// 1 <nil>
	// 1 <nil> values......keys
}
