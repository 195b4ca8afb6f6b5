package drill

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/launch"
)

// hogEnv, if set, makes a patient a process that only computes.
const hogEnv = "WEFT_TEST_HOG"

// hog computes until it is ended.
func hog(ctx context.Context) error {
	for x := uint32(1); ctx.Err() == nil; {
		for range 1 << 20 {
			x = x*1664525 + 1013904223
		}
		runtime.KeepAlive(x)
	}
	return nil
}

// undisturbed runs a job that nobody breaks, next to busy processes and with the limits of a server, and counts the incidents:
// all of them are false.
func (o *Options) undisturbed(ctx context.Context, t *Table) error {
	r, err := o.start(ctx, 0)
	if err != nil {
		return err
	}
	busy, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if o.Hogs > 0 {
			_, _ = launch.Run(busy, launch.Spec{N: o.Hogs, Command: o.Program, Env: []string{hogEnv + "=1", "GOMAXPROCS=1"}, Grace: time.Second})
		}
	}()
	began := time.Now()
	over, report := time.After(o.Healthy), time.Tick(5*time.Minute)
	for running := true; running; {
		select {
		case <-r.heard:
			for _, i := range r.alarms()[t.FalseAlarms:] {
				t.FalseAlarms++
				t.Alarms = append(t.Alarms, i.Verdict)
				fmt.Fprintf(o.Log, "after %.0f s: %s: %s; %v\n", time.Since(began).Seconds(), i.Kind, i.Verdict, i.Evidence)
			}
		case <-report:
			fmt.Fprintf(o.Log, "healthy for %.0f s, load average %.1f: %d false alarms\n", time.Since(began).Seconds(), loadAverage(), t.FalseAlarms)
		case <-over:
			running = false
		case <-ctx.Done():
			running = false
		}
	}
	t.Healthy, t.Hogs, t.Load = time.Since(began).Seconds(), o.Hogs, loadAverage()
	end()
	<-ended
	fmt.Fprintf(o.Log, "healthy for %.0f s, load average %.1f: %d false alarms\n", t.Healthy, t.Load, t.FalseAlarms)
	return r.stop()
}

// loadAverage is the machine's over the last minute, 0 where it is not known.
func loadAverage() float64 {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}
