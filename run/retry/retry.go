// Package retry has the pauses between attempts.
package retry

import (
	"context"
	"time"
)

// Pauses are the times to wait between attempts: each is twice as long as the one before it, from a first to a longest.
type Pauses struct{ next, most time.Duration }

// Pause gives pauses from first to most.
func Pause(first, most time.Duration) Pauses { return Pauses{next: min(first, most), most: most} }

// Next is the length of the next pause.
func (p *Pauses) Next() time.Duration {
	now := p.next
	p.next = min(2*now, p.most)
	return now
}

// Wait lets the next pause pass. It returns early with the context's error if that ends first.
func (p *Pauses) Wait(ctx context.Context) error {
	timer := time.NewTimer(p.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
