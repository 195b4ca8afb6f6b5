package conform

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
)

var verbs = []Scenario{
	{Name: "written before the notice", Ranks: 2, Run: noticeAfterData},
	{Name: "writes in order", Ranks: 2, Run: writesInOrder},
	{Name: "reads", Ranks: 3, Run: reads},
	{Name: "fetch and add", Ranks: 4, Run: fetchAdd},
	{Name: "compare and swap", Ranks: 3, Run: compareSwap},
	{Name: "notices", Ranks: 4, Run: notices},
	{Name: "wrong use of verbs", Ranks: 2, Run: wrongVerbs},
	{Name: "verbs to a rank that left", Ranks: 2, Run: verbsGone},
}

// box keeps what Poll tells until it is asked for.
type box struct {
	e       transport.Endpoint
	done    map[transport.Ticket]error
	notices map[int][]uint32 // by peer
	stop    transport.Stop
}

func newBox(e transport.Endpoint) *box {
	return &box{e: e, done: map[transport.Ticket]error{}, notices: map[int][]uint32{}, stop: impatient()}
}

func (b *box) poll() error {
	cs := b.e.Verbs().Poll(nil)
	for _, c := range cs {
		if c.Ticket == 0 {
			b.notices[c.Peer] = append(b.notices[c.Peer], c.Notice)
			continue
		}
		if _, twice := b.done[c.Ticket]; twice {
			return fmt.Errorf("ticket %d is complete twice", c.Ticket)
		}
		b.done[c.Ticket] = c.Err
	}
	if len(cs) == 0 {
		time.Sleep(10 * time.Microsecond) // lets the others run
		return b.stop()
	}
	b.stop = impatient()
	return nil
}

// complete waits for a ticket, and gives what posting it said if it was refused.
func (b *box) complete(t transport.Ticket, err error) error {
	if err != nil {
		return err
	}
	if t == 0 {
		return fmt.Errorf("an operation got ticket 0")
	}
	for {
		if err, ok := b.done[t]; ok {
			return err
		}
		if err := b.poll(); err != nil {
			return fmt.Errorf("ticket %d: %w", t, err)
		}
	}
}

// notice waits for the next number from a peer.
func (b *box) notice(from int) (uint32, error) {
	for len(b.notices[from]) == 0 {
		if err := b.poll(); err != nil {
			return 0, fmt.Errorf("a notice from rank %d: %w", from, err)
		}
	}
	n := b.notices[from][0]
	b.notices[from] = b.notices[from][1:]
	return n, nil
}

// share allocates memory and tells its key to all ranks.
func share(e transport.Endpoint, n int) ([]byte, []transport.Key, error) {
	b, err := e.Verbs().Alloc(n)
	if err != nil {
		return nil, nil, err
	}
	for i := range b {
		if b[i] != 0 {
			return nil, nil, fmt.Errorf("byte %d of new memory is %d", i, b[i])
		}
	}
	if a := uintptr(unsafe.Pointer(unsafe.SliceData(b))); a%64 != 0 {
		return nil, nil, fmt.Errorf("memory at %#x, want a multiple of 64", a)
	}
	k, err := e.Verbs().Key(b)
	if err != nil {
		return nil, nil, err
	}
	keys, err := swapKeys(e, k)
	return b, keys, err
}

// swapKeys tells a rank's key to all others and gives theirs, by rank.
func swapKeys(e transport.Endpoint, k transport.Key) ([]transport.Key, error) {
	p, err := begun(e, 0x5a)
	if err != nil {
		return nil, err
	}
	keys := make([]transport.Key, e.Size())
	for r := range keys {
		if r != e.Rank() {
			if err := p.Send(r, 0, binary.LittleEndian.AppendUint64(nil, uint64(k))); err != nil {
				return nil, err
			}
		}
	}
	for r := range keys {
		keys[r] = k
		if r != e.Rank() {
			var x [8]byte
			if err := p.Recv(r, 0, x[:]); err != nil {
				return nil, err
			}
			keys[r] = transport.Key(binary.LittleEndian.Uint64(x[:]))
		}
	}
	return keys, p.Close()
}

// word is eight bytes of own memory, for sync/atomic.
func word(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[0])) }

// writeAndNotify writes to rank 1 in two parts that begin and end anywhere, tells it, and waits until it has looked.
func writeAndNotify(e transport.Endpoint, x *box, at transport.Key, src []byte, number uint32) error {
	half := len(src) / 3
	if _, err := e.Verbs().Write(1, at, src[:half]); err != nil {
		return err
	}
	if _, err := e.Verbs().Write(1, at+transport.Key(half), src[half:]); err != nil {
		return err
	}
	if err := x.complete(e.Verbs().Notify(1, number)); err != nil {
		return err
	}
	if got, err := x.notice(1); err != nil || got != number {
		return fmt.Errorf("answer %d is %d: %w", number, got, err)
	}
	return nil
}

// noticeAfterData: a notice comes after everything that was posted before it.
func noticeAfterData(e transport.Endpoint) error {
	const rounds, most = 300, 1 << 17
	b, keys, err := share(e, 2*most)
	if err != nil {
		return err
	}
	x, peer := newBox(e), 1-e.Rank()
	length := func(k int) int { return 1 + k*k*7919%(most-1) }
	if e.Rank() == 0 {
		for k := range rounds {
			if err := writeAndNotify(e, x, keys[peer], message(length(k), uint64(k)), uint32(k)); err != nil {
				return err
			}
		}
		return e.Verbs().Free(b)
	}
	for k := range rounds {
		got, err := x.notice(peer)
		if err != nil || got != uint32(k) {
			return fmt.Errorf("notice %d is %d: %v", k, got, err)
		}
		if err := same(b[:length(k)], uint64(k)); err != nil {
			return fmt.Errorf("after notice %d: %w", k, err)
		}
		if err := x.complete(e.Verbs().Notify(peer, uint32(k))); err != nil {
			return err
		}
	}
	return e.Verbs().Free(b)
}

// writeTwice writes the numbers up to rounds to one place of rank 0 and then to another, until that has seen the last one.
func writeTwice(e transport.Endpoint, x *box, first, second transport.Key, rounds uint64) error {
	src := make([]byte, 8)
	for k := uint64(1); k <= rounds; k++ {
		binary.NativeEndian.PutUint64(src, k)
		if _, err := e.Verbs().Write(0, first, src); err != nil {
			return err
		}
		if err := x.complete(e.Verbs().Write(0, second, src)); err != nil {
			return err
		}
	}
	_, err := x.notice(0)
	return err
}

// writesInOrder: writes become visible in the order in which they were posted.
// Words of eight bytes are written at once, so that the owner can look at them
// while they are.
func writesInOrder(e transport.Endpoint) error {
	const rounds = 20000
	b, keys, err := share(e, 4096)
	if err != nil {
		return err
	}
	x, peer := newBox(e), 1-e.Rank()
	const first, second = 2048, 8 // in different lines, not in the order of their addresses
	if e.Rank() == 1 {
		if err := writeTwice(e, x, keys[0]+first, keys[0]+second, rounds); err != nil {
			return err
		}
		return e.Verbs().Free(b)
	}
	for last := uint64(0); last < rounds; {
		late := word(b[second:]).Load()
		early := word(b[first:]).Load()
		if early < late || late < last {
			return fmt.Errorf("write %d was seen before write %d to another place (last %d)", late, early+1, last)
		}
		if late > last {
			x.stop = impatient() // what comes is seen here, not by poll
		}
		last = late
		if err := x.poll(); err != nil {
			return err
		}
	}
	if err := x.complete(e.Verbs().Notify(peer, 1)); err != nil {
		return err
	}
	return e.Verbs().Free(b)
}

// reads: memory of any length at any place can be read.
func reads(e transport.Endpoint) error {
	const most = 1 << 18
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	b, keys, err := share(e, most)
	if err != nil {
		return err
	}
	fill(b, uint64(e.Rank()))
	if err := bar.wait(); err != nil {
		return err
	}
	x := newBox(e)
	for r := range e.Size() {
		want := message(most, uint64(r))
		for k := range 100 {
			off := k * 997 % most
			n := k * k * 313 % (most - off)
			dst := make([]byte, n)
			if err := x.complete(e.Verbs().Read(r, dst, keys[r]+transport.Key(off))); err != nil {
				return fmt.Errorf("read %d bytes at %d: %w", n, off, err)
			}
			if string(dst) != string(want[off:off+n]) {
				return fmt.Errorf("read %d bytes at %d of rank %d: they differ", n, off, r)
			}
		}
	}
	if err := bar.wait(); err != nil {
		return err
	}
	return e.Verbs().Free(b)
}

// addThree adds 3 to a word of rank 0, which its owner does in its own memory.
func addThree(e transport.Endpoint, x *box, at transport.Key, own *atomic.Uint64) (was uint64, err error) {
	if e.Rank() == 0 {
		return own.Add(3) - 3, nil
	}
	was = own.Load()
	return was, x.complete(e.Verbs().FetchAdd(0, at, 3, &was))
}

// fetchAdd: nothing is lost of what all ranks add to a word, its owner by
// sync/atomic among them, and nobody sees the same number twice.
func fetchAdd(e transport.Endpoint) error {
	const rounds = 500
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	b, keys, err := share(e, 64)
	if err != nil {
		return err
	}
	x := newBox(e)
	last := int64(-1)
	for range rounds {
		was, err := addThree(e, x, keys[0]+8, word(b[8:]))
		if err != nil {
			return err
		}
		if int64(was) <= last || was%3 != 0 {
			return fmt.Errorf("the word was %d after %d", was, last)
		}
		last = int64(was)
	}
	if err := bar.wait(); err != nil {
		return err
	}
	if got, want := word(b[8:]).Load(), uint64(3*rounds*e.Size()); e.Rank() == 0 && got != want {
		return fmt.Errorf("the sum is %d, want %d", got, want)
	}
	return e.Verbs().Free(b)
}

// countUp raises a word of rank 0 by one at a time until it is rounds, and gives how often this rank was the one to do so.
func countUp(e transport.Endpoint, x *box, at transport.Key, rounds uint64) (won int, err error) {
	for k := uint64(0); k < rounds; {
		var was uint64
		if err := x.complete(e.Verbs().CompareSwap(0, at, k, k+1, &was)); err != nil {
			return 0, err
		}
		if was < k {
			return 0, fmt.Errorf("the word went back from %d to %d", k, was)
		}
		if was == k {
			won++
			was++
		}
		k = was
	}
	return won, nil
}

// compareSwap: of all that swap the same number, one succeeds.
func compareSwap(e transport.Endpoint) error {
	const rounds = 300
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	b, keys, err := share(e, 64)
	if err != nil {
		return err
	}
	x := newBox(e)
	won, err := countUp(e, x, keys[0], rounds)
	if err != nil {
		return err
	}
	var all uint64
	if err := x.complete(e.Verbs().FetchAdd(0, keys[0]+16, uint64(won), &all)); err != nil {
		return err
	}
	if err := bar.wait(); err != nil {
		return err
	}
	if got := word(b[16:]).Load(); e.Rank() == 0 && got != rounds {
		return fmt.Errorf("%d swaps succeeded, want %d", got, rounds)
	}
	return e.Verbs().Free(b)
}

// notifyAll posts numbered notices to all ranks, this one too, and waits for none.
func notifyAll(e transport.Endpoint, rounds uint32) (map[transport.Ticket]bool, error) {
	tickets := map[transport.Ticket]bool{}
	for k := range rounds {
		for r := range e.Size() {
			t, err := e.Verbs().Notify(r, k<<8|uint32(e.Rank()))
			if err != nil {
				return nil, err
			}
			if t == 0 || tickets[t] {
				return nil, fmt.Errorf("ticket %d twice", t)
			}
			tickets[t] = true
		}
	}
	return tickets, nil
}

// notices: all arrive, those of a peer in order, however many are under way.
func notices(e transport.Endpoint) error {
	const rounds = 1000
	x := newBox(e)
	tickets, err := notifyAll(e, rounds)
	if err != nil {
		return err
	}
	for r := range e.Size() {
		for k := range uint32(rounds) {
			got, err := x.notice(r)
			if err != nil {
				return err
			}
			if want := k<<8 | uint32(r); got != want {
				return fmt.Errorf("notice %d from rank %d is %#x, want %#x", k, r, got, want)
			}
		}
	}
	for t := range tickets {
		if err := x.complete(t, nil); err != nil {
			return err
		}
	}
	return nil
}

// wrongVerbs: what cannot be done is an error, at once or with the completion.
func wrongVerbs(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	b, keys, err := share(e, 1<<20)
	if err != nil {
		return err
	}
	x, peer := newBox(e), 1-e.Rank()
	var was uint64
	unnamed, err := e.Verbs().Alloc(1 << 20)
	if err != nil {
		return err
	}
	if err := bar.wait(); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		try  func() (transport.Ticket, error)
	}{
		{"write to a rank that is not there", func() (transport.Ticket, error) { return e.Verbs().Write(2, keys[0], b[:8]) }},
		{"read from a rank that is not there", func() (transport.Ticket, error) { return e.Verbs().Read(-1, b[:8], keys[0]) }},
		{"notify a rank that is not there", func() (transport.Ticket, error) { return e.Verbs().Notify(17, 1) }},
		{"fetch and add at an odd place", func() (transport.Ticket, error) { return e.Verbs().FetchAdd(peer, keys[peer]+4, 1, &was) }},
		{"compare and swap at an odd place", func() (transport.Ticket, error) { return e.Verbs().CompareSwap(peer, keys[peer]+1, 0, 1, &was) }},
		{"write to no memory", func() (transport.Ticket, error) { return e.Verbs().Write(peer, ^transport.Key(0)-7, b[:8]) }},
		{"read from no memory", func() (transport.Ticket, error) { return e.Verbs().Read(peer, b[:64], ^transport.Key(0)-63) }},
		{"write beyond the memory", func() (transport.Ticket, error) { return e.Verbs().Write(peer, keys[peer]+1<<20-4, b[:8]) }},
		{"fetch and add behind the memory", func() (transport.Ticket, error) { return e.Verbs().FetchAdd(peer, keys[peer]+1<<20, 1, &was) }},
		{"read before the memory", func() (transport.Ticket, error) { return e.Verbs().Read(peer, b[:64], keys[peer]-64) }},
		{"write by a key that was not given", func() (transport.Ticket, error) { return e.Verbs().Write(peer, keys[peer]+1<<40, b[:8]) }},
		{"read by key 0", func() (transport.Ticket, error) { return e.Verbs().Read(peer, b[:8], 0) }},
	} {
		if x.complete(c.try()) == nil {
			return fmt.Errorf("%s: no error", c.name)
		}
	}
	if _, err := e.Verbs().Key(make([]byte, 10)); err == nil {
		return fmt.Errorf("plain memory has a key")
	}
	if err := e.Verbs().Free(make([]byte, 10)); err == nil {
		return fmt.Errorf("plain memory was freed")
	}
	if _, err := e.Verbs().Alloc(-1); err == nil {
		return fmt.Errorf("memory of negative length")
	}
	if err := bar.wait(); err != nil {
		return err
	}
	if err := e.Verbs().Free(b); err != nil {
		return err
	}
	if err := e.Verbs().Free(b); err == nil {
		return fmt.Errorf("memory was freed twice")
	}
	if err := bar.wait(); err != nil {
		return err
	}
	if x.complete(e.Verbs().Write(peer, keys[peer], make([]byte, 8))) == nil {
		return fmt.Errorf("memory that was freed was written to")
	}
	if err := bar.wait(); err != nil {
		return err
	}
	return e.Verbs().Free(unnamed)
}

// verbsGone: operations on a rank that left complete with an error.
func verbsGone(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	b, keys, err := share(e, 64)
	if err != nil {
		return err
	}
	if err := bar.wait(); err != nil {
		return err
	}
	if e.Rank() == 1 {
		return e.Close()
	}
	if err := gone(bar.p.Recv(1, 9, make([]byte, 8)), 1); err != nil {
		return err
	}
	x, v := newBox(e), e.Verbs()
	var was uint64
	for k, post := range []func() (transport.Ticket, error){
		func() (transport.Ticket, error) { return v.Write(1, keys[1], b) },
		func() (transport.Ticket, error) { return v.Read(1, b, keys[1]) },
		func() (transport.Ticket, error) { return v.FetchAdd(1, keys[1], 1, &was) },
		func() (transport.Ticket, error) { return v.Notify(1, 1) },
	} {
		if err := gone(x.complete(post()), 1); err != nil {
			return fmt.Errorf("operation %d: %w", k, err)
		}
	}
	return nil
}
