package script

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/run/transport"
)

// A program may rely on its slots: that many messages are under way from one rank to
// another on a channel before one is received. What transports hold:
//
//	mem, shm   Depth messages a channel, of any length (transport.Capabilities). A program
//	           with more slots uses several channels of the port for one of its own:
//	           groups of Depth messages take turns on them.
//	tcp        any number, but a bound in bytes for each peer, which is lifted for calls
//	           that may need more (transport.Bounded): those of several channels, which
//	           share the bound, and those of messages that are too long for it.
//
// So what is proven to end with the slots it has does end here.

// sureSlots is how many slots a program gets without a question. Of one that has more
// it is found out how many it needs: each takes 8 KiB of shared memory.
const sureSlots = 512

// spread deals the messages of a script out to channels of a port whose channels hold
// depth messages. Sender and receiver count the messages of a way alike, so they agree.
func (s *Script) spread(p *sched.Program, depth int) error {
	if p.Slots <= depth {
		return nil
	}
	slots := p.Slots
	if slots > sureSlots {
		var err error
		if slots, err = step.Needs(p, sureSlots); err != nil {
			return err
		}
	}
	type way struct {
		peer  sched.Rank
		sends bool
	}
	for c := range s.channels {
		total, seen := map[way]int{}, map[way]int{}
		each := func(do func(w way, on *int32)) {
			for i := range s.channels[c] {
				a := &s.channels[c][i]
				if a.Op.Receives() {
					do(way{a.From, false}, &a.recvOn)
				}
				if a.Op.Sends() {
					do(way{a.To, true}, &a.sendOn)
				}
			}
		}
		each(func(w way, _ *int32) { total[w]++ })
		each(func(w way, on *int32) {
			turns := (min(slots, total[w]) + depth - 1) / depth
			*on = int32(c + len(s.channels)*(seen[w]/depth%turns))
			seen[w]++
		})
		for w, n := range total {
			if top := c + len(s.channels)*((min(slots, n)-1)/depth); top >= transport.Channels {
				return fmt.Errorf("program %s has %d channels and may have %d messages in flight to rank %d on each: the transport holds %d in all; declare fewer slots",
					p.Name, len(s.channels), min(slots, n), w.peer, depth*transport.Channels)
			}
		}
	}
	return nil
}
