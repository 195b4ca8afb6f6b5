package up

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic"
	"github.com/weft-fabric/weft/run/elastic/node"
	"github.com/weft-fabric/weft/view/web"
)

// A rank is killed while an epoch that counts on it is being formed, and the others have
// yet to tell that they are at work there: what overcomes the kill is the epoch after.
func TestAKillWhileAnEpochForms(t *testing.T) {
	r := &run{o: Options{Ranks: 3}, board: web.NewBoard(), started: time.Now()}
	l := newLedger(r)
	for slot := range 3 {
		l.watch(node.Event{Kind: node.Started, Slot: slot, Pid: 100 + slot})
	}
	clock := r.started
	now := func() time.Time { clock = clock.Add(time.Millisecond); return clock }
	decide := func(number uint64, slots ...int) {
		e := coord.Epoch{Number: number}
		for _, s := range slots {
			var seat coord.Seat
			for range s {
				seat.ID++ // its type has no name here
			}
			e.Members = append(e.Members, seat)
		}
		l.watch(node.Event{Kind: node.Decided, Slot: -1, At: now(), Epoch: e})
	}
	form := func(number uint64, slots ...int) {
		for _, s := range slots {
			l.watch(node.Event{Kind: node.Said, Slot: s, Word: elastic.Word{Kind: elastic.Formed, Epoch: number, At: now()}})
		}
	}
	decide(1, 0, 1)
	form(1, 0, 1)
	decide(2, 0, 1, 2)
	l.hurt(1, 101, now(), "kill")
	form(2, 0, 1, 2)
	i := l.incidents[0]
	if i.over || len(i.knew) > 0 {
		t.Errorf("the epoch that counts on the killed rank has overcome its death: %+v", i)
	}
	decide(3, 0, 2)
	form(3, 0, 2)
	if !i.over || i.outside || i.detect <= 0 || i.resume < i.detect {
		t.Errorf("the epoch without the killed rank has not overcome its death: %+v", i)
	}
}
