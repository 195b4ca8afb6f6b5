package plan

import (
	"fmt"
	"testing"
)

// A search over models of 8B to 1T parameters and 8 to 131,072 GPUs.
func BenchmarkSearch(b *testing.B) {
	for _, name := range []string{"llama3-8b", "llama3-70b", "llama3.1-405b", "deepseek-v3", "kimi-k2", "gpt-1t"} {
		for _, gpus := range []int{8, 64, 512, 4096, 16384, 131072} {
			b.Run(fmt.Sprintf("%s/%d", name, gpus), func(b *testing.B) {
				for range b.N {
					mc := clusterOf(b, "H100", gpus, 400)
					found, err := Search(named(b, name), mc, Megatron, Wish{Batch: max(gpus, 1024), Seq: 4096, Reserve: .05})
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(found.TooBig+found.Bounded+found.Priced), "layouts")
					b.ReportMetric(float64(found.Priced), "priced")
				}
			})
		}
	}
}
