package comm

import (
	"context"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
)

// Blocks longer than messages may be: every algorithm gives the right result, those
// whose messages are of several blocks as well.
func TestLongBlocks(t *testing.T) {
	for _, n := range bounded.First(2, 3, 4, 5) {
		err := programs(n, func(_ *algo.Algorithm, p *sched.Program) error {
			if !p.Op.Blocks() {
				return nil
			}
			each(t, n, quick, func(c *Comm) error {
				messagesOnly(c)
				tr, err := newTrial[float32](c, order{Op: trialOf[p.Op], Count: c.library.table().Message(p.Op)/4*5/4 + 1, Root: n - 1}, Using(p))
				if err != nil {
					return err
				}
				if err := tr.run(context.Background()); err != nil {
					return err
				}
				return tr.complete()
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
