package comm

import (
	"context"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// threadTime is the processor time of this thread in nanoseconds.
func threadTime() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return t.Nano()
}

// Operations that wait for nobody, of both ranks in turn on one goroutine: what the calls themselves take.
func BenchmarkAtOnce(b *testing.B) {
	for _, x := range []struct {
		name  string
		count int
		order [2]int // the rank that waits for nobody comes first
		call  func(c *Comm, buf []float32) error
	}{
		{"broadcast/8", 2, [2]int{0, 1}, func(c *Comm, buf []float32) error { return Broadcast(context.Background(), c, buf, 0) }},
		{"broadcast/1K", 256, [2]int{0, 1}, func(c *Comm, buf []float32) error { return Broadcast(context.Background(), c, buf, 0) }},
		{"reduce/8", 2, [2]int{1, 0}, func(c *Comm, buf []float32) error { return Reduce(context.Background(), c, buf, buf, Sum, 0) }},
		{"reduce/1K", 256, [2]int{1, 0}, func(c *Comm, buf []float32) error { return Reduce(context.Background(), c, buf, buf, Sum, 0) }},
	} {
		b.Run(x.name, func(b *testing.B) {
			comms, err := Local(2)
			if err != nil {
				b.Fatal(err)
			}
			const turn = 4
			buf := make([]float32, x.count)
			runtime.LockOSThread() // its processor time counts, whatever else the host does
			defer runtime.UnlockOSThread()
			began := threadTime()
			for b.Loop() {
				for _, r := range x.order {
					for range turn {
						if err := x.call(comms[r], buf); err != nil {
							b.Fatal(err)
						}
					}
				}
			}
			b.ReportMetric(float64(threadTime()-began)/float64(b.N)/(2*turn), "ns/call")
			for _, c := range comms {
				_ = c.Close()
			}
		})
	}
}
