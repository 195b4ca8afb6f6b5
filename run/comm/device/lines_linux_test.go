package device

import (
	"context"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
)

// An operation is over soon only if all inputs are complete, the kernels come to their end, and nobody gave up.
func TestSoon(t *testing.T) {
	none(t, ranks(t, 1, gpu.Plain, Config{}, func(_ context.Context, g *Group, _ *comm.Comm) error {
		d := &direct{entries: entries{g: g}, lines: &lines{page: make([]byte, linesSize)}}
		in, out, cut := d.lines.in(0), d.lines.out(0), d.lines.cut()
		for _, x := range []struct {
			in, out, cut uint32
			want         bool
		}{{6, 7, 0, false}, {7, 6, 0, false}, {7, 7, 0, true}, {8, 9, 0, true}, {7, 7, 1, false}} {
			*in, *out, *cut = x.in, x.out, x.cut
			if got := d.soon(7); got != x.want {
				return fmt.Errorf("operation 7 with %+v: %t", x, got)
			}
		}
		return nil
	}))
}
