package verify

import (
	"context"

	"github.com/weft-fabric/weft/collective/sched"
)

// Within is Program for a caller that may stop waiting: it ends soon after the context does, with the context's error.
func Within(ctx context.Context, p *sched.Program) (*Report, error) { return prove(ctx, p, true) }

// stopEvery is how many actions a proof takes between two looks at its context: a few milliseconds at most.
const stopEvery = 1 << 10

// stopped counts an action, and is the context's error once in stopEvery of them.
func (w *world) stopped() error {
	if w.rep.Actions++; w.rep.Actions%stopEvery > 0 {
		return nil
	}
	return w.ctx.Err()
}
