package serve

import (
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim"
)

// hosts is a cluster of hosts on rails.
func hosts(t *testing.T, kind, text string) *plan.Machine {
	t.Helper()
	c, err := cluster.Parse("hosts", []byte("name: hosts\nhosts:\n  \"n[0-1]\": "+kind+"\nfabric:\n  family: rail\n  switch: "+text+"\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := plan.NewMachine(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Mooncake's nine transfers of Qwen3-8B's KV cache between two hosts with TP 8 and a line of 200 GB/s (vllm-v1-pd-performance in its docs).
func TestTransfers(t *testing.T) {
	m, err := work.Named("qwen3-8b")
	if err != nil {
		t.Fatal(err)
	}
	e := Engine{Model: m, Machine: hosts(t, "dgx-a100", "QM8700"), Layout: Layout{TP: 8, PP: 1, Replicas: 1, Prefill: 1}, Weights: "bf16",
		KV: "bf16", Chunk: 8192, Memory: .9}
	graph, gpus := e.Machine.Places()
	var errs []float64
	for tokens, ms := range map[int]float64{128: .54, 256: .61, 512: .92, 1024: 1.5, 2048: 2.51, 4096: 4.75, 8192: 8.84, 16384: 16.43,
		32768: 31.65} {
		f, err := sim.NewFlows(graph, sim.Options{Catalog: e.Machine.Catalog(), Measured: true})
		if err != nil {
			t.Fatal(err)
		}
		for r := range 8 {
			if _, err := f.Start(0, gpus[8+r], gpus[r], e.KVBytes()*float64(tokens)/kvShare); err != nil {
				t.Fatal(err)
			}
		}
		var end unit.Time
		for {
			at, more := f.Next()
			if !more {
				break
			}
			f.Advance(at)
			end = at
		}
		got := 1e3 * (kvStart + end.Seconds())
		t.Logf("%d tokens: %.2f ms, measured %.2f", tokens, got, ms)
		errs = append(errs, off(got, ms))
	}
	if median, worst := of(errs); median > .05 || worst > .12 {
		t.Errorf("transfers are off by %.1f%% in the median, %.1f%% at worst", 100*median, 100*worst)
	}
}

// What crosses the fabric while the prompt runs costs only its last layer; a slow NIC, and many transfers at once to one host, cost more.
func TestTransfersShareLinks(t *testing.T) {
	m, err := work.Named("llama3-70b")
	if err != nil {
		t.Fatal(err)
	}
	mc := hosts(t, "dgx-h100", "QM9700")
	run := func(l Layout, slow float64) *Result {
		e := Engine{Model: m, Machine: mc, Layout: l, Weights: "fp8", KV: "bf16", Chunk: 8192, Memory: .9}
		if slow < 1 {
			e.Fabric.Slow = []sim.Slow{{Name: "n1:nic0", Factor: slow}, {Name: "n1:nic2", Factor: slow}}
		}
		return serve(t, e, Load{Concurrency: 16, Input: 4000, Output: 64, Requests: 64, Seed: 1})
	}
	quick := run(Layout{TP: 2, PP: 1, Replicas: 4, Prefill: 4}, 1)
	if quick.Transfer.P50 > .002 || quick.Transfer.P50 < kvStart/2 || quick.Requests != 64 {
		t.Errorf("a transfer that hides behind its prompt takes %.5f s longer, %s", quick.Transfer.P50, quick.KVLimit)
	}
	bad := run(Layout{TP: 2, PP: 1, Replicas: 4, Prefill: 4}, .01)
	if bad.Transfer.P99 < 50*quick.Transfer.P99 || !strings.Contains(bad.KVLimit, "n1:nic") {
		t.Errorf("with NICs at a hundredth a transfer takes %.5f s longer, healthy %.5f; limit %s",
			bad.Transfer.P99, quick.Transfer.P99, bad.KVLimit)
	}
	// Two flows to one GPU share its NIC: each takes twice as long.
	graph, gpus := mc.Places()
	times := map[int]unit.Time{}
	for _, n := range []int{1, 2} {
		f, err := sim.NewFlows(graph, sim.Options{Catalog: mc.Catalog()})
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if _, err := f.Start(0, gpus[8+i], gpus[0], 1e9); err != nil {
				t.Fatal(err)
			}
		}
		at, _ := f.Next()
		if done := f.Advance(at); len(done) != n {
			t.Fatalf("%d of %d are through at %s", len(done), n, at)
		}
		times[n] = at
	}
	if r := float64(times[2]) / float64(times[1]); math.Abs(r-2) > .01 {
		t.Errorf("two at once take %.2f times as long", r)
	}
}
