package plan

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/model/cluster"
)

// searched is a cluster of H100. InfiniBand's three tiers end at 65,536 GPUs; beyond, the Ethernet switches of an example have ports
// enough.
func searched(b testing.TB, gpus int) *Machine {
	if gpus <= 65536 {
		return clusterOf(b, "H100", gpus, 400)
	}
	text, err := os.ReadFile("../../examples/rail-131k.yaml")
	if err != nil {
		b.Fatal(err)
	}
	c, err := cluster.Parse("rail-131k", text, nil)
	if err != nil {
		b.Fatal(err)
	}
	mc, err := NewMachine(c, gpus)
	if err != nil {
		b.Fatal(err)
	}
	return mc
}

// spent is the processor time of this process so far, in seconds: on a busy machine the clock shows others' work as well.
func spent() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return (time.Duration(r.Utime.Nano()) + time.Duration(r.Stime.Nano())).Seconds()
}

// A search over models of 8B to 1T parameters and 8 to 131,072 GPUs.
func BenchmarkSearch(b *testing.B) {
	for _, name := range []string{"llama3-8b", "llama3-70b", "llama3.1-405b", "deepseek-v3", "kimi-k2", "gpt-1t"} {
		for _, gpus := range []int{8, 64, 512, 4096, 16384, 131072} {
			b.Run(fmt.Sprintf("%s/%d", name, gpus), func(b *testing.B) {
				for range b.N {
					mc := searched(b, gpus)
					b.ResetTimer()
					before := spent()
					found, err := Search(named(b, name), mc, Megatron, Wish{Batch: max(gpus, 1024), Seq: 4096, Reserve: .05})
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(spent()-before, "cpu-s/search")
					b.ReportMetric(float64(found.TooBig+found.Bounded+found.Priced), "layouts")
					b.ReportMetric(float64(found.Priced), "priced")
				}
			})
		}
	}
}
