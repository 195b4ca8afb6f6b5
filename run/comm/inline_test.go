package comm

import (
	"context"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// Broadcasts that wait for nobody, some of them queued, while the recorder is read:
// every value comes, and what is recorded are operations one after another, with
// times that do not go back.
func TestSwiftCallsWhileTheRecorderIsRead(t *testing.T) {
	rounds := bounded.Times(1000, 3000)
	each(t, 2, Config{}, func(c *Comm) error {
		ctx := context.Background()
		read, end := make(chan error, 1), make(chan struct{})
		go func() {
			for {
				list := c.Flight().Records()
				for i, r := range list {
					if i > 0 && (r.Seq != list[i-1].Seq+1 || r.Began < list[i-1].Began) {
						read <- fmt.Errorf("operation %d at %d follows %d at %d", r.Seq, r.Began, list[i-1].Seq, list[i-1].Began)
						return
					}
				}
				select {
				case <-end:
					read <- nil
					return
				default:
				}
			}
		}()
		err := func() error {
			for k := range rounds {
				var h *Handle
				queued, buf := []int64{0}, []int64{0}
				if c.Rank() == 0 {
					queued[0], buf[0] = -int64(k), int64(k)
				}
				if k%10 == 0 {
					h = BroadcastAsync(ctx, c, queued, 0)
				}
				if err := Broadcast(ctx, c, buf, 0); err != nil {
					return err
				}
				if buf[0] != int64(k) {
					return fmt.Errorf("%d came in round %d", buf[0], k)
				}
				if k%10 == 0 {
					if err := h.Wait(ctx); err != nil || queued[0] != -int64(k) {
						return fmt.Errorf("%d came in round %d from the queue: %w", queued[0], k, err)
					}
				}
			}
			return nil
		}()
		close(end)
		if bad := <-read; err == nil {
			err = bad
		}
		return err
	})
}
