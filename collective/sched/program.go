// Package sched is the language of collective algorithms. A Program is a value:
// it can be printed, parsed, compared, digested and stored, and it means the
// same on every machine. collective/step defines its meaning.
//
// A program is one text for all ranks. Its channels run concurrently, each an ordered
// list of steps. Steps name chunks and peers by expressions over the rank r, the
// number of ranks n, the channel c and loop variables. A ring is a dozen lines for any
// number of ranks:
//
//	weft 1
//	name ring
//	op all-reduce
//	ranks 8
//	chunks n
//	slots 2
//	channels 1:
//	  send in[(r-1)%n] to (r+1)%n
//	  repeat j < n-2:
//	    recv-reduce-send in[(r-2-j)%n] from (r-1)%n to (r+1)%n
//	  recv-reduce-copy-send in[r] -> out[r] from (r-1)%n to (r+1)%n
//	  repeat j < n-2:
//	    recv-copy-send -> out[(r-1-j)%n] from (r-1)%n to (r+1)%n
//	  recv -> out[(r+1)%n] from (r-1)%n
//
// Messages between two ranks on one channel keep their order; up to slots of them may
// be in flight. A message without chunks, in[0 +: 0], is a signal. A send is done once
// its message is in flight; a receive takes the oldest message. A reducing step
// computes src + message, so a program fixes the order of every reduction. The input
// buffer is read-only. A step may store to exactly the chunks it reads, but not to
// chunks that partly overlap them.
//
// One order of sums is canonical: the tree in which ranks i 2^k to (i+1) 2^k - 1, as far
// as they exist, are summed first, for every i and k. Four ranks give
// (x0 + x1) + (x2 + x3), three (x0 + x1) + x2. All programs that sum in this order give
// the same bits, over every transport, layout of ranks on hosts, and buffer split.
//
// Ranks from n on, if any, are computing switches: they have scratch, but no input or
// output.
package sched

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/weft-fabric/weft/model/spell"
)

// Rank is a participant's number: data ranks from 0, then computing switches.
type Rank int32

// Collective is what a program promises.
type Collective uint8

// The collectives. Blocks are the n equal parts of the larger buffer.
const (
	AllReduce     Collective = iota + 1 // out = sum of every in
	ReduceScatter                       // out = block r of the sum of every in
	AllGather                           // block p of out = in of rank p
	Broadcast                           // out = in of the root
	Reduce                              // at the root: out = sum of every in
	AllToAll                            // block p of out = block r of in of rank p
	Gather                              // at the root: block p of out = in of rank p
	Scatter                             // out = block r of in of the root
	SendRecv                            // out = in of the rank before, around the ring of ranks
	Barrier                             // nobody ends before everybody began
)

var collectiveNames = []string{"", "all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all", "gather", "scatter",
	"send-recv", "barrier"}

func (c Collective) String() string {
	if int(c) < len(collectiveNames) && c > 0 {
		return collectiveNames[c]
	}
	return fmt.Sprintf("collective(%d)", c)
}

// Collectives lists all of them in order.
func Collectives() []Collective {
	var all []Collective
	for i := range collectiveNames[1:] {
		all = append(all, Collective(i+1))
	}
	return all
}

// ParseCollective reads what Collective.String prints.
func ParseCollective(s string) (Collective, error) {
	return lookup[Collective]("collective", collectiveNames, s)
}

// Rooted reports whether the collective has a root.
func (c Collective) Rooted() bool {
	return c == Broadcast || c == Reduce || c == Gather || c == Scatter
}

// Reduces reports whether the collective computes: its outputs are sums.
func (c Collective) Reduces() bool {
	return c == AllReduce || c == ReduceScatter || c == Reduce || c == Barrier
}

// BusFactor turns algorithm bandwidth (bytes of the larger buffer over time) into
// bus bandwidth as nccl-tests prints it: 2(n-1)/n for all-reduce, (n-1)/n where
// ranks start from or end up with n blocks, 1 elsewhere and for one rank, and 0
// for a barrier, which moves nothing.
func (c Collective) BusFactor(n int) float64 {
	if n < 2 {
		return 1
	}
	share := float64(n-1) / float64(n)
	switch {
	case c == AllReduce:
		return 2 * share
	case c.Blocks():
		return share
	case c == Barrier:
		return 0
	}
	return 1
}

// Buffer is one of a rank's three memories.
type Buffer uint8

// The buffers. Chunks of all three have the same size.
const (
	In  Buffer = iota + 1 // the user's input, read only
	Out                   // the user's output
	Tmp                   // scratch
)

var bufferNames = []string{"", "in", "out", "tmp"}

func (b Buffer) String() string { return bufferNames[b] }

// Op is what a step does.
type Op uint8

// The operations. The fused ones pass on what they computed without waiting for
// a store to be read back, and are one step in every world.
const (
	Send               Op = iota + 1 // src goes to a peer
	Recv                             // message -> dst
	RecvReduce                       // src + message -> dst
	RecvSend                         // message -> dst and on to a peer ("recv-copy-send")
	RecvReduceSend                   // src + message goes to a peer, nothing is stored
	RecvReduceCopySend               // src + message -> dst and on to a peer
	Copy                             // src -> dst
	LocalReduce                      // src + dst -> dst ("reduce")
	Wait                             // until another channel of this rank has done a number of steps
)

var opNames = []string{"", "send", "recv", "recv-reduce", "recv-copy-send", "recv-reduce-send", "recv-reduce-copy-send", "copy",
	"reduce", "wait"}

func (o Op) String() string { return opNames[o] }

// Receives reports whether the operation takes a message.
func (o Op) Receives() bool { return o >= Recv && o <= RecvReduceCopySend }

// Sends reports whether the operation gives a message.
func (o Op) Sends() bool {
	return o == Send || o >= RecvSend && o <= RecvReduceCopySend
}

// Reduces reports whether the operation computes.
func (o Op) Reduces() bool {
	return o == RecvReduce || o == RecvReduceSend || o == RecvReduceCopySend || o == LocalReduce
}

// Reads reports whether the operation reads its src chunks.
func (o Op) Reads() bool {
	return o == Send || o == Copy || o.Reduces()
}

// Stores reports whether the operation writes its dst chunks.
func (o Op) Stores() bool {
	return o == Recv || o == RecvReduce || o == RecvSend || o == RecvReduceCopySend || o == Copy || o == LocalReduce
}

// Ref names chunks of a buffer: Count of them from Index on.
type Ref struct {
	Buf   Buffer
	Index *Expr
	Count *Expr // nil means one
}

// Step is one operation. Fields that the operation does not use are zero.
type Step struct {
	Op       Op
	Src, Dst Ref
	From, To *Expr
	Channel  *Expr // Wait: the other channel
	Done     *Expr // Wait: how many steps it must have done
	Line     int32 // of the text it was read from, for errors; 0 if it was made in Go
}

// Stmt is a step, a loop or a choice; exactly one of the three.
type Stmt struct {
	Step *Step
	Loop *Loop
	If   *If
}

// Loop repeats its body with Var running from 0 below Count.
type Loop struct {
	Var   string
	Count *Expr
	Body  []Stmt
	Line  int32 // as that of a Step

	slot int // of Var in Env
}

// If runs Then where Cond is not zero, else Else.
type If struct {
	Cond *Expr
	Then []Stmt
	Else []Stmt
	Line int32 // as that of a Step
}

// Group is a number of channels that run the same steps. Their number is c, which
// counts on from one group to the next.
type Group struct {
	Count int
	Body  []Stmt
}

// Let is a named number.
type Let struct {
	Name  string
	Value int64
}

// Table is a named list of numbers, whose entries expressions look up: who the
// parent of a rank is in a tree that follows no formula.
type Table struct {
	Name   string
	Values []int64
}

// Program is a collective algorithm for a given number of ranks.
type Program struct {
	Name     string
	Op       Collective
	Ranks    int // n: ranks that hold data
	Switches int // ranks n, n+1, ... that only compute
	Root     int
	Chunks   *Expr // of the larger of in and out; a multiple of n where the collective has blocks
	Scratch  *Expr // chunks of tmp; nil means none
	Slots    int   // messages under way between two ranks on a channel, at least 1
	Lets     []Let
	Tables   []Table
	Groups   []Group
	Orders   [][]Rank // by channel: the rank at each position; nil for a channel means position p is rank p
	From     any      // the file of another tool that it was read from, so that it can be written again as it was; nil if it was none
}

// Channels is the number of channels of all groups together.
func (p *Program) Channels() int {
	n := 0
	for _, g := range p.Groups {
		n += g.Count
	}
	return n
}

// Blocks reports whether in and out differ in size by the number of ranks.
func (c Collective) Blocks() bool {
	return c == ReduceScatter || c == AllGather || c == AllToAll || c == Gather || c == Scatter
}

// NumChunks is the number of chunks of a buffer.
func (p *Program) NumChunks(b Buffer) int {
	env := p.Env(0, 0)
	switch b {
	case Tmp:
		if p.Scratch == nil {
			return 0
		}
		return int(p.Scratch.Eval(&env))
	case In:
		if p.Op == AllGather || p.Op == Gather {
			return int(p.Chunks.Eval(&env)) / p.Ranks
		}
	case Out:
		if p.Op == ReduceScatter || p.Op == Scatter {
			return int(p.Chunks.Eval(&env)) / p.Ranks
		}
	}
	return int(p.Chunks.Eval(&env))
}

// At gives the rank at a position of a channel, and Pos a rank's position.
// Computing switches are where they are.
func (p *Program) At(channel int, pos int64) Rank {
	if order := p.order(channel); order != nil && pos >= 0 && pos < int64(len(order)) {
		return order[pos]
	}
	return Rank(pos)
}

// Pos gives the position of a rank on a channel.
func (p *Program) Pos(channel int, r Rank) int64 {
	for i, q := range p.order(channel) {
		if q == r {
			return int64(i)
		}
	}
	return int64(r)
}

func (p *Program) order(channel int) []Rank {
	if channel < len(p.Orders) {
		return p.Orders[channel]
	}
	return nil
}

// Digest identifies the program: ranks compare it before the first byte moves.
func (p *Program) Digest() string {
	sum := sha256.Sum256([]byte(p.String()))
	return hex.EncodeToString(sum[:8])
}

func lookup[T ~uint8](what string, names []string, s string) (T, error) {
	for i, n := range names {
		if n == s && i > 0 {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q; %sknown: %s", what, s, spell.Meant(s, names[1:]), join(names[1:]))
}
