package device

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// entries are what ranks tell one another when they enter an operation: what they call, where their memory lies, and why they
// cannot take part, if so. All ranks read the same and come to the same conclusion, before a byte is moved.
//
//	0  the call      48  whether there is more      64  in      96  out
//
// More is there when it is news: the handles of in and out, and why the rank cannot take part, as text. All ranks exchange it if
// one has some.
type entries struct {
	g      *Group
	number uint64
	mine   []byte // in memory that the others see
	all    []byte
	more   []byte // of all ranks
	news   bool   // whether it was exchanged for this operation

	made []uint64   // how many calls were made here, which the others can read
	keys []comm.Key // and by which keys, by rank

	watch *elsewhere
}

const (
	entrySize = 128
	entryMore = transport.CallSize
	entryIn   = 64
	entryOut  = 96

	moreSize = 320
	moreIn   = 0
	moreOut  = gpu.HandleSize
	moreWhy  = 2 * gpu.HandleSize
)

// newEntries allocates the memory in which ranks tell each other what their calls are about, and exchanges the keys by
// which each reads how many calls the others have made. Every rank calls it at the same time.
func newEntries(ctx context.Context, g *Group) (e entries, err error) {
	e.g, e.watch = g, &elsewhere{}
	if e.mine, err = comm.Alloc[byte](g.c, entrySize+moreSize); err != nil {
		return e, err
	}
	if e.all, err = comm.Alloc[byte](g.c, entrySize*g.Size()); err != nil {
		return e, err
	}
	if e.more, err = comm.Alloc[byte](g.c, moreSize*g.Size()); err != nil {
		return e, err
	}
	if e.made, err = comm.Alloc[uint64](g.c, 1); err != nil {
		return e, err
	}
	key, err := comm.KeyOf(g.c, e.made)
	if err != nil {
		return e, err
	}
	keys := make([]uint64, g.Size())
	if err := comm.AllGather(ctx, g.c, keys, []uint64{uint64(key)}); err != nil {
		return e, err
	}
	for _, k := range keys {
		e.keys = append(e.keys, comm.Key(k))
	}
	return e, nil
}

// count counts a call that is made.
func (e *entries) count() {
	if e != nil {
		atomic.AddUint64(&e.made[0], 1)
	}
}

// lookEvery is how long an entry waits before it looks whether another rank makes a call on memory of the host instead.
var lookEvery = time.Second

// elsewhere looks, while an operation is entered, for ranks that make a call on memory of the host in its place: they would wait for
// one another for ever. One timer looks now and then while there are calls: one for each call would wake a thread each time.
type elsewhere struct {
	mu    sync.Mutex
	call  calls.Call // that is entered
	since time.Time  // when that began; zero if none is
	made  bool       // whether there was one since the last look
	timer *time.Timer
	found *comm.Failure
}

// enters tells that an operation is entered.
func (e *entries) enters(call *calls.Call) {
	x := e.watch
	x.mu.Lock()
	defer x.mu.Unlock()
	x.call, x.since, x.found = *call, time.Now(), nil
	if x.timer == nil {
		x.timer = time.AfterFunc(lookEvery/2, e.look)
	} else if !x.made {
		x.timer.Reset(lookEvery / 2)
	}
	x.made = true
}

// look looks if an operation has been entered for long, and again later if there was one.
func (e *entries) look() {
	x := e.watch
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.since.IsZero() && time.Since(x.since) >= lookEvery {
		if x.found = e.apart(&x.call); x.found != nil {
			e.g.above.Abort(x.found)
			x.since = time.Time{}
		}
	}
	if x.made = !x.since.IsZero(); x.made {
		x.timer.Reset(lookEvery / 2)
	}
}

// entered ends the looking, waits for a look that is under way, and tells what was found.
func (e *entries) entered() *comm.Failure {
	x := e.watch
	x.mu.Lock()
	defer x.mu.Unlock()
	x.since = time.Time{}
	return x.found
}

// apart finds a rank that has entered a call of the communicator that this one has not, and has not made the call that this one
// makes on memory of GPUs.
func (e *entries) apart(call *calls.Call) *comm.Failure {
	rank, what, ok := e.g.above.Ahead()
	if !ok {
		return nil
	}
	made := []uint64{0}
	if err := comm.Get(e.g.c, made, e.keys[rank], rank).Wait(context.Background()); err != nil || made[0] >= e.number {
		return nil
	}
	me := e.g.Rank()
	return &comm.Failure{Kind: comm.Mismatch, Rank: me, Culprits: []int{min(me, rank), max(me, rank)}, Seq: e.number, Call: call.String(),
		Err: fmt.Errorf("rank %d calls %s on memory of the host, rank %d %s on memory of GPUs: all ranks must use the same",
			rank, what, me, call)}
}

// begin makes a new entry, empty so far.
func (e *entries) begin() {
	e.number++
	clear(e.mine)
}

// of is the entry of a rank.
func (e *entries) of(rank int) []byte { return e.all[rank*entrySize:][:entrySize] }

// moreOf is what there is more of a rank.
func (e *entries) moreOf(rank int) []byte { return e.more[rank*moreSize:][:moreSize] }

// tells gives the own part of more, to be filled in.
func (e *entries) tells() []byte {
	e.mine[entryMore] = 1
	return e.mine[entrySize:]
}

// callOf is a call as ranks compare it. Factors of PreMulSum may differ.
func (e *entries) callOf(c *Call, p *planned) calls.Call {
	call := calls.Call{Seq: e.number, Op: c.Op, Type: c.Dst.Type, Reduce: c.Reduce, Root: int32(c.Root), Count: uint64(c.count(e.g.Size()))}
	switch {
	case c.Sends != nil: // lengths are compared by pairs
		call.Count, call.Variant = 0, calls.AllToAllV
	case c.Counts != nil:
		call.Count = 0
		for _, k := range c.Counts { // the total alone would not tell [1 2] from [2 1]
			call.Count += uint64(k)
			call.Program = call.Program*0x9E3779B97F4A7C15 + uint64(k)
		}
	}
	if p != nil {
		call.Program = call.Program*0x9E3779B97F4A7C15 + p.digest
	}
	if call.Op == 0 { // not even that is known
		call.Type, call.Reduce = reduce.Uint8, 0
	}
	return call
}

// enter tells all ranks what this one calls, or why it cannot take part, and compares. The Mismatch that ranks get names the
// first rank that differs from rank 0.
func (e *entries) enter(ctx context.Context, c *Call, p *planned, wrong error) error {
	call := e.callOf(c, p)
	call.Put(e.mine[:transport.CallSize])
	if wrong != nil {
		why := e.tells()[moreWhy:]
		why[0] = 1
		copy(why[1:len(why)-1], wrong.Error())
	}
	e.enters(&call)
	err := comm.AllGather(ctx, e.g.c, e.all, e.mine[:entrySize])
	if found := e.entered(); found != nil {
		return found
	}
	if err != nil {
		return err
	}
	e.news = false
	for r := range e.g.Size() {
		e.news = e.news || e.of(r)[entryMore] != 0
	}
	if e.news {
		if err := comm.AllGather(ctx, e.g.c, e.more, e.mine[entrySize:]); err != nil {
			return err
		}
	}
	for r := range e.g.Size() {
		if why := e.moreOf(r)[moreWhy:]; e.news && why[0] != 0 {
			if r == e.g.Rank() {
				return wrong
			}
			return fmt.Errorf("rank %d cannot take part in operation %d on memory of GPUs: %s", r, e.number, text(why[1:]))
		}
	}
	var first calls.Call
	first.Get(e.of(0)[:transport.CallSize])
	for r := 1; r < e.g.Size(); r++ {
		var theirs calls.Call
		if theirs.Get(e.of(r)[:transport.CallSize]); theirs != first {
			return &comm.Failure{Kind: comm.Mismatch, Rank: e.g.Rank(), Culprits: []int{0, r}, Seq: e.number, Call: call.String(),
				Err: calls.Mismatch(0, r, &first, &theirs)}
		}
	}
	return nil
}

// pair is a block of an all-to-all with lengths of its own: where it lies in src of one rank and in dst of another, in elements.
type pair struct{ from, to, src, dst, count int }

// pairs tells all ranks what each of them sends to and receives from every other, and compares.
func (e *entries) pairs(ctx context.Context, c *Call) ([]pair, error) {
	n := e.g.Size()
	mine, all := make([]int64, 2*n), make([]int64, 2*n*n)
	for r := range n {
		mine[r], mine[n+r] = int64(c.Sends[r]), int64(c.Counts[r])
	}
	if err := comm.AllGather(ctx, e.g.c, all, mine); err != nil {
		return nil, err
	}
	var list []pair
	dst := make([]int, n) // how far the ranks' are filled
	for from := range n {
		src := 0
		for to := range n {
			k, want := int(all[2*n*from+to]), int(all[2*n*to+n+from])
			if k != want {
				return nil, &comm.Failure{Kind: comm.Mismatch, Rank: e.g.Rank(), Culprits: []int{from, to}, Seq: e.number, Call: "all-to-all-v",
					Err: fmt.Errorf("rank %d sends %d elements to rank %d, which receives %d from it", from, k, to, want)}
			}
			list = append(list, pair{from, to, src, dst[to], k})
			src, dst[to] = src+k, dst[to]+k
		}
	}
	return list, nil
}

// text is bytes up to the first that is zero.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
