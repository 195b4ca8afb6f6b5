// Package plan decides how a collective call runs. It is pure: what is called, by how many ranks, on which memory and by which
// program goes in, a mode comes out. All ranks come to the same mode, as they decide from what every rank entered.
//
// A call is decided in three steps:
//
//	Start   from the own call alone: alone, inline, script, or shared memory
//	Enter   in shared memory: how this rank gives its input to the others
//	Settle  once the others' entries are read: which of the shared-memory modes
package plan

import "github.com/weft-fabric/weft/collective/sched"

// Mode is a way to run a call.
type Mode uint8

// The modes. Those from Direct to Pool are settled after the ranks have entered.
const (
	Alone  Mode = iota + 1 // one rank: at most a copy
	Inline                 // every input fits into the entry lines of the board
	Direct                 // each rank reads the inputs it needs and writes its own output
	Store                  // each rank sums a part and stores it to all outputs
	Commit                 // each rank leaves its sums in shared memory; when all are there, everybody copies them
	Pieces                 // two ranks, large buffers: both halves go through a few slots, piece by piece
	Share                  // the other ranks do the root's work and store to its output
	Pool                   // the other ranks do a share of the root's sum and leave it where the root sees it
	Script                 // messages, action by action
	Levels                 // phases inside hosts and between them, each in a mode of its own
)

var names = [...]string{"", "alone", "inline", "direct", "store", "commit", "pieces", "share", "pool", "script", "levels"}

func (m Mode) String() string { return names[m] }

// Sizes at which modes change, in bytes.
const (
	InlineUpTo = 96   // the data of an entry line
	SmallUpTo  = 4096 // a small input of the board

	// Inputs are pulled (process_vm_readv) rather than copied to shared memory from these lengths on. A pull takes 0.5 us
	// and 0.1 us a page; what was copied is read out of another core's cache. On a Xeon with 2 MiB of second-level cache and
	// 16 cores an all-reduce of 2 MiB takes 1.05 to 1.2 times as long with pulls, of 16 MiB 0.75 to 0.9 times (2 to 8 ranks,
	// 2026-11-15). What is only moved is copied once instead of twice.
	PullSumsFrom  = 8 << 20
	PullMovesFrom = 64 << 10

	// Inputs are staged piece by piece, with the readers following, between these lengths.
	FollowFrom = 512 << 10 // between two ranks; with more from PullMovesFrom on
	FollowUpTo = 8 << 20   // longer inputs are pulled, as a stage stays for as long as the communicator

	// PiecesFrom is the input from which two ranks exchange halves by pieces; below, Commit is as fast.
	PiecesFrom = 5 << 18
	PieceSize  = 16 << 10

	// ShareFrom is the length from which a reduce's sum is shared. With 2 ranks on two Xeon cores 16 KiB take 1.10 us instead
	// of 1.31, 256 KiB 5.8 instead of 10.5, 4 MiB 234 instead of 574. Where ranks outnumber the cores it is multiplied by the
	// ranks: 8 ranks on two cores take 30 us for 128 KiB instead of 29, 42 for 256 KiB instead of 92 (2026-11-16).
	ShareFrom = 16 << 10
)

// Large blocks that all ranks read are moved by parts, the same part of all of them at a time: what one rank reads another one
// has just read, and is still in a cache that both share. An all-gather of 4 MiB between two Xeon cores takes 1.5 times as long
// block after block where blocks are pulled and 2.5 times where they are lent, of 16 MiB 1.1 and 1.4 times (2026-11-16). Larger
// blocks are stored past the caches, which is worth more, and of smaller ones both ways take as long.
const (
	StridePart = 256 << 10
	StrideFrom = 2 << 20
	StrideUpTo = 8 << 20
)

// Stride is how many bytes of a block are moved at a time.
func Stride(c *Call) int {
	if c.Op == sched.AllGather && c.In >= StrideFrom && c.In <= StrideUpTo && !c.Full {
		return StridePart
	}
	return c.Out + 1
}

// Call is what a decision depends on.
type Call struct {
	Op                sched.Collective
	Rank, Ranks, Root int
	In, Out           int  // bytes of this rank's buffers
	Largest           int  // bytes of the largest input of any rank
	Reduces           bool // some reduction is computed
	Scaled            bool // sums read a multiplied copy of the input (PreMulSum)
	Overlap           bool // in and out share memory, and in must not be lost by it
	Exact             bool // where they do, they begin at the same byte
	InSeen, OutSeen   bool // registered: the other ranks map it
	Uneven            bool // blocks have different lengths
	Unknown           bool // and no rank knows all of them (all-to-all-v)

	Program
	Host

	Small   bool // this rank's buffers are small: it enters as SmallAs says and does Direct, wherever they lie
	SmallAs Entry
}

// Program is what a decision asks of the program.
type Program struct {
	Flat    bool // every sum is computed by one rank out of inputs alone, and memory is shared
	Pushes  bool // some sums go to outputs of other ranks
	InPlace bool // no input that is overwritten in place is read by another kernel
	Exports bool // others read this rank's input
	Rooted  bool // all outputs are the root's
}

// Host is what a decision asks of the host.
type Host struct {
	Pulls   bool // every rank may copy out of the others' memory (process_vm_readv)
	Full    bool // ranks of this host outnumber its cores
	Crowded bool // they do, and they are processes, which take turns on the cores
}

// Start decides from the own call alone. Direct stands for every mode that Settle may give.
func Start(c *Call) Mode {
	switch {
	case c.Ranks == 1:
		return Alone
	case !c.Flat || c.Unknown:
		return Script
	case !c.Pushes && !c.Scaled && !c.Uneven && c.Largest <= InlineUpTo:
		return Inline
	}
	return Direct
}

// SetSmall finds out whether this rank's entry and mode follow from the call alone. It saves repeated calls of up to 4 KiB
// some 5% of their time (2026-11-16).
func (c *Call) SetSmall() {
	c.SmallAs = c.input()
	c.Small = !c.Pushes && !c.offers() && c.In <= SmallUpTo && c.SmallAs.Input() <= InSmall
}

// pair reports whether the call is an all-reduce between two ranks whose sums go to both.
func (c *Call) pair() bool { return c.Ranks == 2 && c.Op == sched.AllReduce && c.Pushes }

// Enter decides how this rank gives its input and whether the others may store to its output.
func Enter(c *Call) Entry {
	e := c.input()
	if c.Pushes {
		if c.OutSeen {
			e |= OutSeen
		}
		if c.Overlap {
			e |= Overlaid
		}
	}
	if c.offers() {
		e = c.offer(e)
	}
	return e
}

// input decides how this rank gives its input.
func (c *Call) input() Entry {
	lendable := !c.Scaled && (!c.Overlap || c.InPlace)
	switch n := c.In; {
	case !c.Exports || n == 0:
		return Nowhere
	case n <= InlineUpTo && !c.Pushes:
		return InEntry
	case n <= SmallUpTo && !c.Pushes:
		return InSmall
	case c.ahead():
		return Staged
	case c.InSeen && lendable:
		return Lent
	case !c.Pushes && c.follows():
		if n > PairUpTo {
			return Staged | Growing | Once
		}
		return Staged | Growing
	case c.Pulls && n >= c.pullFrom() && !c.pair() && !c.Scaled && (lendable || c.Pushes):
		return Pulled
	case c.pair() && n >= PiecesFrom && !c.Scaled && (!c.Overlap || c.Exact):
		return InSlots
	case n > PairUpTo && !c.Pushes:
		return Staged | Once
	}
	return Staged
}

// An input of up to PairUpTo has two stages, for operations in turn; one of up to AheadUpTo has Stages of them. A larger one
// has a single stage, and operations wait for one another at the end instead.
const (
	Stages    = 16
	AheadUpTo = 64 << 10
	PairUpTo  = 1 << 20
)

// StageOf is which stage an input of n bytes goes to.
func StageOf(seq uint64, n int) int {
	if n <= AheadUpTo {
		return int(seq % Stages)
	}
	return int(seq & 1)
}

// ahead reports whether a root copies its input though the others see it, so that it need not wait for its readers: where ranks
// share cores, a wait in every operation is a switch in every operation. On two cores, beside other work, a broadcast of 16 KiB takes
// 0.7 times as long so among 4 ranks and 0.3 times among 8; a scatter of 64 KiB 0.7 times (2026-11-19).
func (c *Call) ahead() bool {
	return c.Full && c.In <= AheadUpTo && (c.Op == sched.Broadcast || c.Op == sched.Scatter)
}

func (c *Call) pullFrom() int {
	if c.Reduces {
		return PullSumsFrom
	}
	return PullMovesFrom
}

// follows reports whether the input is staged piece by piece while its readers follow.
func (c *Call) follows() bool {
	if c.In < PullMovesFrom || c.In > FollowUpTo || c.Scaled {
		return false
	}
	switch c.Op {
	case sched.Broadcast:
		return c.Ranks > 2 || c.In >= FollowFrom
	case sched.Reduce:
		return c.In >= FollowFrom
	case sched.Gather: // one rank reads each input: it takes an idle core to be worth it
		return c.In >= FollowFrom && !c.Full
	}
	return false
}

// offers reports whether an entry says that the others may do the root's work.
func (c *Call) offers() bool {
	if !c.Rooted {
		return false
	}
	if c.Reduces {
		return c.In >= ShareFrom
	}
	return c.Out > SmallUpTo
}

// Logs reports whether a rank may store sums to other ranks' outputs, for which it needs its journal.
func (c *Call) Logs() bool { return c.Pushes && c.OutSeen || c.Reduces && c.offers() }

// offer completes the entry of a root whose work the others may do.
func (c *Call) offer(e Entry) Entry {
	least := ShareFrom
	if c.Crowded {
		least *= c.Ranks
	}
	if c.Rank != c.Root || c.Scaled || c.Reduces && c.In < least {
		return e
	}
	seen := c.OutSeen
	if c.Reduces {
		switch {
		case c.InSeen && (seen || c.pools()):
			e = Lent
		case c.pools():
			e, seen = Pulled, false
		default:
			return e
		}
		if c.pools() {
			e |= Pooled
		}
	}
	if seen {
		e |= OutSeen
	}
	if c.Overlap {
		e |= Overlaid
	}
	return e
}

// pools reports whether a sum is shared though the others do not see the root's output.
func (c *Call) pools() bool { return c.Reduces && !c.Scaled && c.In > FollowUpTo && c.Pulls }

// Helps reports whether this rank, having entered so, may be one that works for the root. Then it must read the root's entry.
func Helps(c *Call, mine Entry) bool {
	if !c.Rooted {
		return false
	}
	lends := mine.Input() == Lent
	if !c.Reduces {
		return lends
	}
	return lends && c.In >= ShareFrom || c.pools()
}

// Settle decides the mode once all entries that this rank waits for are read. root is the entry of the root.
func Settle(c *Call, mine, root Entry, all *Entries) Mode {
	switch {
	case c.Rooted && c.shares(mine, root, all):
		return Share
	case Helps(c, mine) && root&Pooled != 0:
		return Pool
	case !c.Pushes:
		return Direct
	case !all.Hidden:
		return Store
	case all.Slots == 2:
		return Pieces
	}
	return Commit // a rank that offered slots stages its input after all
}

// shares reports whether the others work for the root and store to its output.
func (c *Call) shares(mine, root Entry, all *Entries) bool {
	if root&OutSeen == 0 || c.Rank != c.Root && !(Helps(c, mine) && mine.Input() == Lent) {
		return false
	}
	return c.Op == sched.Gather || all.Lent == c.Ranks
}
