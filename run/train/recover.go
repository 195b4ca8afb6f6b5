package train

import (
	"context"
	"errors"

	"github.com/weft-fabric/weft/run/comm"
)

// Recover goes on after a failed step with the ranks that are left of c: it shrinks
// the communicator and rebuilds on it, and again if more ranks fail meanwhile. All
// ranks that are left call it. It returns the communicator that the run goes on
// with, also beside a *LostError, so that the state can be restored on it from a
// checkpoint.
func (t *Trainer) Recover(ctx context.Context, c *comm.Comm) (*comm.Comm, error) {
	for {
		next, err := c.Shrink(ctx)
		if err != nil {
			return c, err
		}
		c = next
		err = t.Rebuild(ctx, c)
		if err == nil {
			return c, nil
		}
		// What is wrong with state or layout is wrong on every communicator.
		var failure *comm.Failure
		if ctx.Err() != nil || !errors.As(err, &failure) {
			return c, err
		}
	}
}
