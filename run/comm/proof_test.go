package comm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

func init() {
	bodies["deep"] = func(k *kid) error { return k.once(deep(k.c)) }
}

// deepProgram lets every rank send all of its chunks before it receives one.
func deepProgram(n, chunks int) *sched.Program {
	text := fmt.Sprintf("weft 1\nname deep\nop all-reduce\nranks %d\nchunks %d\nscratch %d\nslots 256\nchannels 1:\n  copy in[0 +: %d] -> tmp[0 +: %d]\n",
		n, chunks, chunks, chunks, chunks)
	for d := 1; d < n; d *= 2 {
		text += fmt.Sprintf("  repeat i < %d:\n    send tmp[i] to r^%d\n  repeat i < %d:\n    recv-reduce tmp[i] -> tmp[i] from r^%d\n",
			chunks, d, chunks, d)
	}
	p, err := sched.Parse(text + fmt.Sprintf("  copy tmp[0 +: %d] -> out[0 +: %d]\n", chunks, chunks))
	if err != nil {
		panic(err)
	}
	return p
}

// deep runs a program that needs 64 messages under way, at several sizes.
func deep(c *Comm) error {
	p := deepProgram(c.Size(), 64)
	for _, count := range []int{1, 1000, 1 << 20, 6 << 20} {
		buf := make([]float32, count)
		for i := range buf {
			buf[i] = float32((c.Rank() + 1) * (i%1000 + 1))
		}
		if err := AllReduce(context.Background(), c, buf, Sum, Using(p), ByMessages()); err != nil {
			return fmt.Errorf("%d elements: %w", count, err)
		}
		for i, v := range buf {
			if want := float32(c.Size() * (c.Size() + 1) / 2 * (i%1000 + 1)); v != want {
				return fmt.Errorf("%d elements: element %d is %v, want %v", count, i, v, want)
			}
		}
	}
	return nil
}

// What is proven to end with its slots ends, whatever the size and the transport.
func TestSlotsAreThere(t *testing.T) {
	each(t, 4, quick, deep)
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			list := startProcs(t, 2, transport, "deep")
			list.await("done")
			list.finish()
		})
	}
}

// A program runs only if it is proven, unless its caller says that it need not be.
func TestOnlyProvenProgramsRun(t *testing.T) {
	const head = "weft 1\nname x\nop all-reduce\nranks 2\nchunks 2\nscratch 4\nslots 2\nchannels 1:\n"
	for text, says := range map[string]string{
		"  copy in[0 +: 2] -> tmp[0 +: 2]\n  send tmp[0 +: 2] to 1-r\n  recv-reduce tmp[0 +: 2] -> tmp[1 +: 2] from 1-r\n  copy tmp[1 +: 2] -> out[0 +: 2]\n": "line 11",
		"  send in[0 +: 2] to 1-r\n  recv -> out[0 +: 2] from 1-r\n":                                                                                          "lacks the contribution",
	} {
		p, err := sched.Parse(head + text)
		if err != nil {
			t.Fatal(err)
		}
		each(t, 2, quick, func(c *Comm) error {
			buf := []float32{1, 2}
			err := AllReduce(context.Background(), c, buf, Sum, Using(p))
			if err == nil || !strings.Contains(err.Error(), "is not proven") || !strings.Contains(err.Error(), says) {
				return fmt.Errorf("%v; want it not proven, with %q", err, says)
			}
			err = AllReduce(context.Background(), c, buf, Sum, Unproven(p), ByMessages())
			if f := (*step.Fault)(nil); err != nil && !errors.As(err, &f) {
				return fmt.Errorf("unproven: %w", err)
			}
			return nil
		})
	}
}
