package comm

import (
	"context"
	"errors"
	"time"

	"github.com/weft-fabric/weft/transport"
)

// shrink is how survivors agree on who they are. Every rank writes down in its
// own board that it wants to, and where its next board is. The lowest rank that
// lives waits for all that live, and then writes down who is in. The others take
// that. If it dies first, the next one decides; if it dies after some have read
// its decision and others have not, the group that includes it fails at once and
// shrinks again.
type shrink struct {
	c   *Comm
	ctx context.Context
	sub *Comm
	end int64
}

// The words of the shrink lines.
const (
	wantEpoch  = atShrink      // the epoch that the rank wants to begin
	wantHandle = atShrink + 8  // its board there
	wantKey    = atShrink + 16 // and the board's key
	decided    = atShrink + 24 // the epoch that the rank decided on
	decidedID  = atShrink + 32 // the communicator's number
	decidedSet = atShrink + 40 // who is in, a bit a rank
	maxShrink  = (atWord - decidedSet) * 8
)

// grace is how long ranks that live are waited for.
const grace = 2 * time.Second

func (s *shrink) agree() (members []int, id uint32, blobs [][]byte, err error) {
	c := s.c
	if len(c.members) > maxShrink {
		return nil, 0, nil, errors.New("too many ranks")
	}
	mine := c.boards[c.rank]
	h, k := getBlob(s.sub.blob(nil))
	epoch := uint64(c.epoch) + 1
	atomicAt(mine, wantHandle).Store(uint64(h))
	atomicAt(mine, wantKey).Store(uint64(k))
	atomicAt(mine, wantEpoch).Store(epoch)
	began := clock()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		boards := c.allBoards()
		for _, b := range boards { // the lowest decision counts
			if b == nil || atomicAt(b, decided).Load() != epoch {
				continue
			}
			members, err := s.read(b, boards)
			if err == nil {
				var blobs [][]byte
				for _, m := range members {
					if boards[m] == nil { // it died since: the new group will find out
						blobs = append(blobs, putBlob(nil, 0, 0))
						continue
					}
					blobs = append(blobs, putBlob(nil, transport.Handle(atomicAt(boards[m], wantHandle).Load()), transport.Key(atomicAt(boards[m], wantKey).Load())))
				}
				return members, uint32(atomicAt(b, decidedID).Load()), blobs, nil
			}
			if errors.Is(err, errExpelled) {
				return nil, 0, nil, err
			}
		}
		if atomicAt(mine, decided).Load() != epoch && c.heir() {
			s.decide(boards, epoch, clock()-began > int64(grace))
		}
		if err := s.ctx.Err(); err != nil {
			return nil, 0, nil, err
		}
		if clock() > s.end {
			return nil, 0, nil, errors.New("the survivors did not agree in time")
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
		}
	}
}

var errExpelled = errors.New("the other ranks went on without this one: it came too late")

// decide writes down who is in once everybody who lives wants to, or without
// those that do not if late is set.
func (s *shrink) decide(boards []board, epoch uint64, late bool) {
	c := s.c
	mine := boards[c.rank]
	var set [maxShrink / 64]uint64
	for i, b := range boards {
		if c.world.ep.Alive(c.members[i]) != nil && i != c.rank {
			continue
		}
		if b == nil || atomicAt(b, wantEpoch).Load() != epoch {
			if late {
				continue
			}
			return
		}
		set[i/64] |= 1 << (i % 64)
	}
	for i, w := range set {
		atomicAt(mine, decidedSet+8*i).Store(w)
	}
	atomicAt(mine, decidedID).Store(uint64(c.world.number()))
	atomicAt(mine, decided).Store(epoch)
}

// read gives the members that a decision names.
func (s *shrink) read(b board, boards []board) ([]int, error) {
	var members []int
	in := false
	for i := range s.c.members {
		if atomicAt(b, decidedSet+8*(i/64)).Load()>>(i%64)&1 == 0 {
			continue
		}
		gone := s.c.world.ep.Alive(s.c.members[i]) != nil
		if boards[i] == nil && !gone || boards[i] != nil && atomicAt(boards[i], wantEpoch).Load() != uint64(s.c.epoch)+1 {
			return nil, errors.New("the board of a member cannot be read") // now, perhaps at the next look
		}
		members = append(members, i)
		in = in || i == s.c.rank
	}
	if !in {
		return nil, errExpelled
	}
	return members, nil
}
