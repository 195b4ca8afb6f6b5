// Package calls says what a rank calls on a communicator: as a value, as the
// opaque signature that transports carry and compare, and in words for errors.
package calls

import (
	"encoding/binary"
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// Call is what a rank is doing on a communicator. Two ranks take part in the
// same operation if all fields are equal.
type Call struct {
	Epoch   uint32           // of the communicator
	Comm    uint32           // the communicator's number, equal on its members
	Seq     uint64           // the operation's number on the communicator, from 1
	Op      sched.Collective // what is done
	Variant uint8            // 0, or which of the operations that share Op (v-variants, point to point)
	Type    reduce.Type
	Reduce  reduce.Op // zero where nothing is reduced
	Root    int32     // -1 where there is none
	Count   uint64    // elements, as the operation counts them
	Program uint64    // the first bytes of the program's digest
	Cause   uint64    // the operation whose callback makes the call; 0 for none
}

// Variants of operations that share a Collective.
const (
	Plain uint8 = iota
	AllGatherV
	AllToAllV
	GatherV
	ScatterV
	ReduceScatterV
	PointToPoint
	SplitCall
	ShrinkCall
	AllReduceBy // these three are folds: reductions by functions of the caller
	ScanBy
	ExScanBy
)

var variants = map[uint8]string{
	AllGatherV: "all-gather-v", AllToAllV: "all-to-all-v", GatherV: "gather-v", ScatterV: "scatter-v",
	ReduceScatterV: "reduce-scatter-v", PointToPoint: "send/recv", SplitCall: "split", ShrinkCall: "shrink",
	AllReduceBy: "all-reduce by a function", ScanBy: "scan", ExScanBy: "exscan",
}

// Wire is the call as transports carry it.
func (c *Call) Wire() transport.Call {
	w := transport.Call{Epoch: c.Epoch, Comm: c.Comm, Seq: c.Seq}
	c.sign(w.Signature[:])
	return w
}

// sign encodes what transports need not understand.
//
//	0  u8 operation  u8 variant  u8 type  u8 reduction   4  i32 root
//	8  u64 elements                                     16  u64 program    24  u64 cause
func (c *Call) sign(b []byte) {
	_ = b[transport.SignatureSize-1]
	le := binary.LittleEndian
	b[0], b[1], b[2], b[3] = uint8(c.Op), c.Variant, uint8(c.Type), uint8(c.Reduce)
	le.PutUint32(b[4:], uint32(c.Root))
	le.PutUint64(b[8:], c.Count)
	le.PutUint64(b[16:], c.Program)
	le.PutUint64(b[24:], c.Cause)
}

// Of is the call that Wire encoded.
func Of(w transport.Call) Call {
	le, b := binary.LittleEndian, w.Signature[:]
	return Call{
		Epoch: w.Epoch, Comm: w.Comm, Seq: w.Seq,
		Op: sched.Collective(b[0]), Variant: b[1], Type: reduce.Type(b[2]), Reduce: reduce.Op(b[3]),
		Root: int32(le.Uint32(b[4:])), Count: le.Uint64(b[8:]), Program: le.Uint64(b[16:]), Cause: le.Uint64(b[24:]),
	}
}

// Put encodes the call into transport.CallSize bytes.
func (c *Call) Put(b []byte) {
	_ = b[transport.CallSize-1]
	le := binary.LittleEndian
	le.PutUint32(b, c.Epoch)
	le.PutUint32(b[4:], c.Comm)
	le.PutUint64(b[8:], c.Seq)
	c.sign(b[transport.CallSize-transport.SignatureSize:])
}

// Get decodes what Put wrote.
func (c *Call) Get(b []byte) {
	var w transport.Call
	w.Get(b)
	*c = Of(w)
}

// String says what is done, without its number.
func (c *Call) String() string {
	s := c.Op.String()
	if v := variants[c.Variant]; v != "" {
		s = v
	}
	if c.folds() {
		return fmt.Sprintf("%s of %d bytes for each rank", s, c.Count)
	}
	s += fmt.Sprintf(" of %d %s", c.Count, c.Type)
	if c.Reduce != 0 {
		s += " " + c.Reduce.String()
	}
	if c.Root >= 0 {
		s += fmt.Sprintf(" at root %d", c.Root)
	}
	return s
}

// folds says that the call is dealt out in shares, of which Count is the bytes.
func (c *Call) folds() bool { return c.Variant >= AllReduceBy }

// differ names the first field that differs, in the order in which people look.
func (c *Call) differ(o *Call) string {
	switch {
	case c.Epoch != o.Epoch:
		return fmt.Sprintf("epochs %d and %d", c.Epoch, o.Epoch)
	case c.Comm != o.Comm:
		return "different communicators"
	case c.Seq != o.Seq:
		return "different numbers: one of them left out or added a call"
	case c.Op != o.Op || c.Variant != o.Variant:
		return "different operations"
	case c.Root != o.Root:
		return fmt.Sprintf("roots %d and %d", c.Root, o.Root)
	case c.Type != o.Type:
		return fmt.Sprintf("types %s and %s", c.Type, o.Type)
	case c.folds() && (c.Count != o.Count || c.Program != o.Program):
		return "other numbers of elements, types or reductions, or different operations before this one"
	case c.Count != o.Count:
		return fmt.Sprintf("counts %d and %d", c.Count, o.Count)
	case c.Reduce != o.Reduce:
		return fmt.Sprintf("reductions %s and %s", c.Reduce, o.Reduce)
	case c.Cause != o.Cause:
		return fmt.Sprintf("started by %s and by %s", c.starter(), o.starter())
	case c.Program != o.Program:
		return "different programs, or different operations before this one"
	}
	return "no difference"
}

// starter says what started the call.
func (c *Call) starter() string {
	if c.Cause == 0 {
		return "the program"
	}
	return fmt.Sprintf("a callback of operation %d", c.Cause)
}

// Mismatch is the error of two ranks that call different things.
func Mismatch(rank, peer int, mine, theirs *Call) *transport.Mismatch {
	return &transport.Mismatch{Rank: rank, Peer: peer, Mine: mine.Wire(), Theirs: theirs.Wire(), Words: Words{}}
}

// Words puts disagreements of calls into words.
type Words struct{}

// Mismatch says what two ranks do, and how that differs.
func (Words) Mismatch(m *transport.Mismatch) string {
	mine, theirs := Of(m.Mine), Of(m.Theirs)
	why := m.Note
	if why == "" && m.Sent != m.Want {
		why = Unlike(m.Sent, m.Want, m.Channel)
	}
	switch {
	case why != "" && mine.Variant == PointToPoint:
		return fmt.Sprintf("rank %d receives from rank %d: %s", m.Rank, m.Peer, why)
	case why != "":
		return fmt.Sprintf("rank %d and rank %d disagree in operation %d (%s): %s", m.Rank, m.Peer, mine.Seq, &mine, why)
	}
	if mine.Seq == theirs.Seq && mine.Comm == theirs.Comm && mine.String() == theirs.String() {
		return fmt.Sprintf("rank %d and rank %d disagree in operation %d of communicator %d (%s): %s",
			m.Rank, m.Peer, mine.Seq, mine.Comm, &mine, mine.differ(&theirs))
	}
	return fmt.Sprintf("rank %d does %s as operation %d of communicator %d, rank %d does %s as operation %d of communicator %d: %s",
		m.Rank, &mine, mine.Seq, mine.Comm, m.Peer, &theirs, theirs.Seq, theirs.Comm, mine.differ(&theirs))
}

// Typed is a channel whose messages hold elements of a type, on which sender and
// receiver must agree.
func Typed(channel int, t reduce.Type) int { return transport.Tagged(channel, uint8(t)) }

// Unlike says how a message that was sent differs from the one that is received.
func Unlike(sent, want transport.Form, channel int) string {
	if t := reduce.Type(sent.Tag()); t.Size() > 0 {
		return fmt.Sprintf("%s were sent, %s are received", Elements(sent), Elements(want))
	}
	return fmt.Sprintf("a message on channel %d has %s, %s were expected", transport.Way(channel), Elements(sent), Elements(want))
}

// Elements says how long a message is.
func Elements(f transport.Form) string {
	if t := reduce.Type(f.Tag()); t.Size() > 0 {
		return fmt.Sprintf("%d %s", f.Bytes()/t.Size(), t)
	}
	return fmt.Sprintf("%d bytes", f.Bytes())
}

// Signature is a number that two calls share only if they are the same call, up to one chance in 2^64, but for their number.
func (c *Call) Signature() uint64 {
	h := Mix(uint64(c.Epoch)<<32|uint64(c.Comm), c.Program)
	h = Mix(h, uint64(c.Op)|uint64(c.Variant)<<8|uint64(c.Type)<<16|uint64(c.Reduce)<<24|uint64(uint32(c.Root))<<32)
	return Mix(Mix(h, c.Count), c.Cause)
}

// Mix mixes a number into a signature.
func Mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9E3779B97F4A7C15
	return h ^ h>>32
}
