package sim

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// cpu is the processor time this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// large is a rail-optimised fabric of three tiers.
func large(tb testing.TB, gpus int) *topo.Graph {
	switch gpus {
	case 1 << 17:
		return example(tb, "rail-131k.yaml")
	case 1 << 14:
		return preset(tb, "rail", map[string]int{"hosts": gpus / 8, "tiers": 3})
	}
	return preset(tb, "rail", map[string]int{"hosts": gpus / 8})
}

// BenchmarkSim reports processor time and the most heap in use, the topology
// included, for an all-reduce on fabrics that are built before.
func BenchmarkSim(b *testing.B) {
	for _, gpus := range []int{1 << 10, 1 << 14, 1 << 17} {
		g := large(b, gpus)
		o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
		for _, c := range []struct {
			name string
			size unit.Bytes
		}{{"hierarchical", unit.GiB}, {"hierarchical", 64 * unit.GiB}, {"ring", unit.GiB}, {"ring", 64 * unit.GiB}} {
			a, err := algo.Find(c.name)
			if err != nil {
				b.Fatal(err)
			}
			p, err := a.Program(Spec(g, sched.AllReduce, gpus))
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/%dGPUs/%dGiB", c.name, gpus, c.size/unit.GiB), func(b *testing.B) {
				runtime.GC()
				start := cpu()
				var res *Result
				for b.Loop() {
					if res, err = Collective(g, p, c.size, o); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((cpu()-start).Milliseconds())/float64(b.N), "cpu-ms")
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.HeapSys-m.HeapReleased)/(1<<20), "peak-MiB")
				b.ReportMetric(float64(res.Actions-res.Folded), "actions")
				b.ReportMetric(res.Time.Microseconds(), "simulated-us")
			})
		}
	}
}

// BenchmarkFolding reports folded against unfolded on 1,024 GPUs of a rail
// fabric; the two must give the same time to the picosecond.
func BenchmarkFolding(b *testing.B) {
	g := large(b, 1<<10)
	for _, name := range []string{"hierarchical", "ring"} {
		a, err := algo.Find(name)
		if err != nil {
			b.Fatal(err)
		}
		p, err := a.Program(Spec(g, sched.AllReduce, 1<<10))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			var spent [2]time.Duration
			for b.Loop() {
				var times [2]unit.Time
				for i, unfolded := range []bool{false, true} {
					start := cpu()
					res, err := Collective(g, p, unit.GiB, Options{Measured: true, Costs: DefaultCosts(g, catalog.Default()), Unfolded: unfolded})
					if err != nil {
						b.Fatal(err)
					}
					spent[i] += cpu() - start
					times[i] = res.Time
				}
				if times[0] != times[1] {
					b.Fatalf("folded %s, unfolded %s", times[0], times[1])
				}
			}
			b.ReportMetric(float64(spent[0].Microseconds())/float64(b.N)/1000, "folded-ms")
			b.ReportMetric(float64(spent[1].Microseconds())/float64(b.N)/1000, "unfolded-ms")
			b.ReportMetric(float64(spent[1])/float64(spent[0]), "ratio")
		})
	}
}
