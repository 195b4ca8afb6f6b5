package step

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

// Chunks is a run of chunks of a buffer.
type Chunks struct {
	Buf   sched.Buffer
	Index int64
	Count int64
}

func (c Chunks) String() string {
	if c.Count == 1 {
		return fmt.Sprintf("%s[%d]", c.Buf, c.Index)
	}
	return fmt.Sprintf("%s[%d +: %d]", c.Buf, c.Index, c.Count)
}

// Shifted reports whether two runs share chunks without being the same run. No
// step may read and store such runs: see the contract.
func (c Chunks) Shifted(d Chunks) bool {
	return c.Buf == d.Buf && c.Index != d.Index && c.Index < d.Index+d.Count && d.Index < c.Index+c.Count
}

// Action is a step with its expressions computed. Fields that the operation
// does not use are zero; From and To are -1.
type Action struct {
	Op       sched.Op
	Channel  int32
	Step     int64 // actions this channel completed before
	From, To sched.Rank
	Src, Dst Chunks
	Count    int64 // chunks moved
	On       int32 // Wait: the channel waited for
	Line     int32 // of the program's text; 0 if it was made in Go
	Done     int64 // Wait: how many actions it had to complete
}

// String writes the action as a step of a program with its numbers filled in.
func (a *Action) String() string {
	s := a.Op.String()
	if a.Op == sched.Wait {
		return fmt.Sprintf("wait channel %d done %d", a.On, a.Done)
	}
	if a.Op.Reads() {
		s += " " + a.Src.String()
	}
	if a.Op.Stores() {
		s += " -> " + a.Dst.String()
	}
	if a.Op.Receives() {
		s += fmt.Sprintf(" from %d", a.From)
	}
	if a.Op.Sends() {
		s += fmt.Sprintf(" to %d", a.To)
	}
	return s
}

// Operand is where one side of what an action computes comes from.
type Operand uint8

// The operands. Src and Dst are the action's chunks as they were before it.
const (
	Nothing Operand = iota
	Message
	Src
	Dst
)

// effects says for every operation what it computes: its left operand, or the
// left one reduced with the right one, in this order.
var effects = [...][2]Operand{
	sched.Send:               {Src, Nothing},
	sched.Recv:               {Message, Nothing},
	sched.RecvReduce:         {Src, Message},
	sched.RecvSend:           {Message, Nothing},
	sched.RecvReduceSend:     {Src, Message},
	sched.RecvReduceCopySend: {Src, Message},
	sched.Copy:               {Src, Nothing},
	sched.LocalReduce:        {Src, Dst},
	sched.Wait:               {Nothing, Nothing},
}

// Effect says what an operation computes: left, or left reduced with right if
// there is a right operand. What it computes is stored if the operation Stores
// and sent if it Sends.
func Effect(op sched.Op) (left, right Operand) { return effects[op][0], effects[op][1] }

// Memory is what a world keeps in the chunks of its ranks: V is a run of them,
// as symbols, names or bytes.
type Memory[V any] interface {
	// Load gives what chunks of a rank hold. What it gives must not change when
	// the chunks are stored to.
	Load(r sched.Rank, a *Action, c Chunks) (V, error)
	// Reduce reduces left with right, in this order.
	Reduce(r sched.Rank, a *Action, left, right V) (V, error)
	// Store puts a value into chunks of a rank.
	Store(r sched.Rank, a *Action, c Chunks, v V) error
}

// Do carries out an action of a rank in a world's memory: it reads all operands,
// then computes, then stores. The result is the message that it sends, if it does.
func Do[V any](m Memory[V], r sched.Rank, a *Action, message V) (sent V, err error) {
	get := func(o Operand) (V, error) {
		switch o {
		case Src:
			return m.Load(r, a, a.Src)
		case Dst:
			return m.Load(r, a, a.Dst)
		}
		return message, nil
	}
	left, right := Effect(a.Op)
	if left == Nothing {
		return sent, nil
	}
	value, err := get(left)
	if err == nil && right != Nothing {
		var with V
		if with, err = get(right); err == nil {
			value, err = m.Reduce(r, a, value, with)
		}
	}
	if err == nil && a.Op.Stores() {
		err = m.Store(r, a, a.Dst, value)
	}
	if err == nil && a.Op.Sends() {
		sent = value
	}
	return sent, err
}

// Hold is what keeps an action from being carried out.
type Hold uint8

// The reasons to hold an action.
const (
	Free      Hold = iota // nothing does
	NoMessage             // the message that it receives has not been sent
	NoRoom                // all slots of the way that it sends on are taken
)

// Held says whether a world must hold an action of an operation: with come messages
// under way on the way that it receives from, and ahead on the way that it sends on.
// A world may have more slots than the program asks for: no result depends on it.
func Held(op sched.Op, come, ahead, slots int64) Hold {
	switch {
	case op.Receives() && come <= 0:
		return NoMessage
	case op.Sends() && ahead >= slots:
		return NoRoom
	}
	return Free
}
