package shared

import (
	"errors"

	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// staging is a rank's buffers of a communicator that the others see, for what they could not see otherwise. They grow to the
// largest operation and are given back with the communicator. Stages serve operations in turn: what one operation left is not
// touched by the next.
type staging struct {
	verbs  transport.Verbs
	memory transport.Memory
	inputs [plan.Stages]stage // copies of inputs up to plan.PairUpTo
	large  stage              // copies of larger ones: used by every operation
	sums   stage
	slots  stage // of exchanges by pieces
	log    stage // the journal
}

// stage is a buffer that the others see.
type stage struct {
	b []byte
	h transport.Handle
}

// atLeast makes a stage at least n bytes long, and gives that many.
func (s *staging) atLeast(x *stage, n int) ([]byte, transport.Handle, error) {
	if len(x.b) < n {
		if x.b != nil {
			if err := s.verbs.Free(x.b); err != nil {
				return nil, 0, err
			}
			*x = stage{}
		}
		size := 4096
		for size < n {
			size *= 2
		}
		fresh, err := s.verbs.Alloc(size)
		if err != nil {
			return nil, 0, err
		}
		h, ok := s.memory.Handle(fresh)
		if !ok {
			return nil, 0, errors.New("memory got from the transport is not seen by its ranks")
		}
		*x = stage{fresh, h}
	}
	return x.b[:n], x.h, nil
}

// input gives a stage for a copy of the input. Programs whose sums are committed wait for one another in the middle, so one
// stage is enough for them.
func (s *staging) input(seq uint64, n int, commits bool) ([]byte, transport.Handle, error) {
	if n > plan.PairUpTo || commits {
		return s.atLeast(&s.large, n)
	}
	return s.atLeast(&s.inputs[plan.StageOf(seq, n)], n)
}

// result gives a stage for sums. They are written after all ranks entered the operation, and so have read those of the one
// before.
func (s *staging) result(n int) ([]byte, transport.Handle, error) {
	return s.atLeast(&s.sums, max(n, 1))
}

// journal makes the journal, empties it and writes down where it is.
func (s *staging) journal(mine board.Board) error {
	if s.log.b == nil {
		_, h, err := s.atLeast(&s.log, reduce.LogSize)
		if err != nil {
			return err
		}
		mine.Mid().SetJournal(h)
	}
	reduce.ResetLog(s.log.b)
	return nil
}

// all gives the buffers, and forgets them.
func (s *staging) all() (list [][]byte) {
	each := []*stage{&s.large, &s.sums, &s.slots, &s.log}
	for i := range s.inputs {
		each = append(each, &s.inputs[i])
	}
	for _, x := range each {
		if x.b != nil {
			list = append(list, x.b)
		}
		*x = stage{}
	}
	return list
}
