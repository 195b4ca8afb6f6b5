package comm

import (
	"context"
	"errors"
	"time"

	"github.com/weft-fabric/weft/comm/internal/board"
	"github.com/weft-fabric/weft/comm/internal/clock"
)

// shrink is how survivors agree on their new group. Every rank writes down on its own board that it wants to, and where its next
// board is. The lowest rank that lives waits for all that live, and then writes down which ranks are in. The others take that. If
// it dies first, the next one decides. If it dies after some have read its decision and others have not, the group that includes
// it fails at once and shrinks again.
type shrink struct {
	c     *Comm
	ctx   context.Context
	next  board.Address // of this rank's next board
	epoch uint64        // that begins
	end   int64
}

// grace is how long ranks that live are waited for.
const grace = 2 * time.Second

// agree gives the ranks that are in, the new communicator's number, and where the ranks' next boards are.
func (s *shrink) agree() (members []int, id uint32, at []board.Address, err error) {
	c := s.c
	if c.Size() > board.MaxShrink {
		return nil, 0, nil, errors.New("too many ranks")
	}
	mine := c.group.Mine()
	mine.Propose(s.epoch, s.next)
	began := clock.Now()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		boards := c.allBoards()
		for _, b := range boards { // the lowest decision counts
			if b == nil {
				continue
			}
			id, ok := b.Decided(s.epoch)
			if !ok {
				continue
			}
			if members, err = s.read(b, boards); err == nil {
				return members, id, nextOf(members, boards), nil
			}
			if errors.Is(err, errExpelled) {
				return nil, 0, nil, err
			}
		}
		if _, done := mine.Decided(s.epoch); !done && c.group.Heir() {
			s.decide(boards, clock.Now()-began > int64(grace))
		}
		if err := s.ctx.Err(); err != nil {
			return nil, 0, nil, err
		}
		if clock.Now() > s.end {
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

// nextOf is where the next boards of ranks are. That of a rank that died since is nowhere: the new group will find out.
func nextOf(members []int, boards []board.Board) []board.Address {
	at := make([]board.Address, len(members))
	for i, m := range members {
		if boards[m] != nil {
			at[i] = boards[m].Next()
		}
	}
	return at
}

var errExpelled = errors.New("the other ranks went on without this one: it came too late")

// decide writes down which ranks are in once all that live want to, or without those that do not if late is set.
func (s *shrink) decide(boards []board.Board, late bool) {
	c := s.c
	in := make([]bool, c.Size())
	for i, b := range boards {
		if i != c.Rank() && c.group.Alive(i) != nil {
			continue
		}
		in[i] = b != nil && b.Proposes(s.epoch)
		if !in[i] && !late {
			return
		}
	}
	c.group.Mine().Decide(s.epoch, c.world.number(), c.Size(), func(rank int) bool { return in[rank] })
}

// read gives the members that a decision names.
func (s *shrink) read(b board.Board, boards []board.Board) ([]int, error) {
	var members []int
	in := false
	for i := range s.c.group.Members {
		if !b.DecidedOn(i) {
			continue
		}
		if boards[i] == nil && s.c.group.Alive(i) == nil || boards[i] != nil && !boards[i].Proposes(s.epoch) {
			return nil, errors.New("the board of a member cannot be read") // now, perhaps at the next look
		}
		members = append(members, i)
		in = in || i == s.c.Rank()
	}
	if !in {
		return nil, errExpelled
	}
	return members, nil
}
