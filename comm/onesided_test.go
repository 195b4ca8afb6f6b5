package comm

import (
	"context"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/transport"
)

// Every rank adds to a counter of rank 0, writes into its own slot there and
// leaves a notice; rank 0 finds the slots written once it has the notices.
func TestOneSided(t *testing.T) {
	ctx := context.Background()
	each(t, 4, Config{}, func(c *Comm) error {
		words, err := Alloc[uint64](c, 16)
		if err != nil {
			return err
		}
		k, err := Key(c, words)
		if err != nil {
			return err
		}
		keys := make([]uint64, c.Size())
		if err := AllGather(ctx, c, keys, []uint64{uint64(k)}); err != nil {
			return err
		}
		zero := transport.Key(keys[0])
		var was uint64
		ticket, err := c.FetchAdd(0, zero, uint64(c.Rank()+1), &was)
		if err != nil {
			return err
		}
		if err := c.Complete(ctx, ticket); err != nil {
			return err
		}
		mine := []uint64{uint64(100 + c.Rank())}
		if _, err := Put(c, 0, zero+transport.Key(8*(1+c.Rank())), mine); err != nil {
			return err
		}
		if ticket, err = c.Notify(0, uint32(c.Rank())); err != nil {
			return err
		}
		if err := c.Complete(ctx, ticket); err != nil {
			return err
		}
		if c.Rank() == 0 {
			for got := 0; got < c.Size(); {
				for _, n := range c.Notices() {
					if words[1+n.From] != uint64(100+n.From) {
						return fmt.Errorf("slot %d is %d although its notice is there", n.From, words[1+n.From])
					}
					got++
				}
			}
			if words[0] != 1+2+3+4 {
				return fmt.Errorf("counter %d", words[0])
			}
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		back := make([]uint64, 5)
		if ticket, err = Get(c, 0, back, zero); err != nil {
			return err
		}
		if err := c.Complete(ctx, ticket); err != nil {
			return err
		}
		if back[0] != 10 || back[4] != 103 {
			return fmt.Errorf("read %v", back)
		}
		if ticket, err = c.CompareSwap(c.Rank(), transport.Key(keys[c.Rank()])+64, 0, 7, &was); err != nil {
			return err
		}
		if err := c.Complete(ctx, ticket); err != nil || words[8] != 7 || was != 0 {
			return fmt.Errorf("swap: %v, %d, was %d", err, words[8], was)
		}
		return Barrier(ctx, c)
	})
}
