package bench_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/launch"
)

// How cost grows with ranks, all processes of this host, alone and as eight hosts made of namespaces: starting and joining,
// memory and open files of a rank that has joined, and an all-reduce of 8 B and of 1 MiB.
func BenchmarkRanks(b *testing.B) {
	for n := 2; n <= 256; n *= 2 {
		b.Run(fmt.Sprint(n), func(b *testing.B) { growth(b, n, launch.Spec{Command: self}) })
	}
	for n := 64; n <= 256; n *= 2 {
		b.Run(fmt.Sprint("8x", n/8), func(b *testing.B) {
			hosts, err := bench.NewNamespaces(b.Context(), bench.Wiring{Hosts: 8})
			if err != nil {
				b.Skip(err)
			}
			defer hosts.Close()
			growth(b, n, hosts.Spec(n, self))
		})
	}
}

func growth(b *testing.B, n int, spec launch.Spec) {
	for b.Loop() {
		c := bench.Default()
		c.Op.Collective, c.Ranks, c.MinBytes, c.MaxBytes, c.StepFactor = sched.AllReduce, n, 8, 1<<20, 1<<17
		c.Batches, c.Check, c.Bind = 3, false, true
		began := time.Now()
		ready := began
		var pids []int
		var memory, files float64
		spec.Stderr, spec.Prefix = os.Stderr, true
		r, err := bench.Measure(b.Context(), c, spec, func(e bench.Event) {
			if e.Hello == nil {
				return
			}
			ready = time.Now()
			if pids = append(pids, e.Hello.Pid); len(pids) == n {
				memory, files = footprint(pids)
			}
		})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(memory, "MiB/rank")
		b.ReportMetric(files, "files/rank")
		b.ReportMetric(ready.Sub(began).Seconds()*1e3, "ms/start")
		b.ReportMetric(r.Rows[0].In.Micros, "us/8B")
		b.ReportMetric(r.Rows[1].In.Micros, "us/1MiB")
		b.ReportMetric(0, "ns/op")
	}
}

// footprint is the memory and the open files of a process, on average. Memory that several share counts for each in part.
func footprint(pids []int) (mebibytes, files float64) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if _, rest, ok := strings.Cut(string(text), "\nPss:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			mebibytes += kib / 1024
		}
		list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		files += float64(len(list))
	}
	return mebibytes / float64(len(pids)), files / float64(len(pids))
}

// How cost grows with communicators: a split, and what 1,000 of them hold.
func BenchmarkSplits(b *testing.B) {
	const ranks, splits = 4, 1000
	for b.Loop() {
		cs, err := comm.Local(ranks)
		if err != nil {
			b.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		subs := make([][]*comm.Comm, ranks)
		done := make(chan error, ranks)
		for r, c := range cs {
			go func() {
				for range splits {
					sub, err := c.Split(context.Background(), 0, r)
					if err != nil {
						done <- err
						return
					}
					subs[r] = append(subs[r], sub)
				}
				done <- nil
			}()
		}
		for range ranks {
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
		took := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(took.Seconds()*1e6/splits, "us/split")
		b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/1024/splits/ranks, "KiB/comm")
		b.ReportMetric(0, "ns/op")
		for r := range cs {
			for _, s := range append(subs[r], cs[r]) {
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}
