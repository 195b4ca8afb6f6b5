package plan

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestSearchTimes measures searches from one host to 131,072 GPUs and writes docs/reference/tables/plan-search.md.
func TestSearchTimes(t *testing.T) {
	if !*update {
		t.Skip("make search-times writes docs/reference/tables/plan-search.md")
	}
	sizes := []int{8, 64, 512, 4096, 16384, 131072}
	var b strings.Builder
	fmt.Fprintf(&b, `# How long searches take

Made by:

    make search-times

Processor seconds of %s, and the layouts that were priced in full of those looked at. The batch is as many
sequences as GPUs, at least 1,024, of 4,096 tokens; the framework is Megatron, GPUs are H100. A search runs on one
processor, with %s/%s and %s. Wanted: at most 5 seconds.

| model |`, "`plan.Search`", runtime.GOOS, runtime.GOARCH, runtime.Version())
	for _, gpus := range sizes {
		fmt.Fprintf(&b, " %d GPUs |", gpus)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---|", len(sizes)))
	late := 0
	for _, name := range []string{"llama3-8b", "llama3-70b", "llama3.1-405b", "deepseek-v3", "kimi-k2", "gpt-1t"} {
		fmt.Fprintf(&b, "| %s |", name)
		for _, gpus := range sizes {
			mc := searched(t, gpus)
			runtime.GC() // of what the search before left
			before := spent()
			found, err := Search(named(t, name), mc, Megatron, Wish{Batch: max(gpus, 1024), Seq: 4096, Reserve: .05})
			if err != nil {
				t.Fatal(err)
			}
			took := spent() - before
			if took > 5 {
				late++
			}
			fmt.Fprintf(&b, " %.1f s, %d of %.2g |", took, found.Priced, float64(found.TooBig+found.Bounded+found.Priced))
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\n%d of %d searches take longer. With experts, the sizes of groups that share them multiply the layouts.\n",
		late, 6*len(sizes))
	if err := os.WriteFile("../../docs/reference/tables/plan-search.md", []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Log(b.String())
}
