package comm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/reduce"
)

// trial is one operation with data that can be checked.
type trial struct {
	run      func(ctx context.Context) error
	complete func() error // the results are right and inputs that are not overwritten are as they were
	intact   func() error // the inputs are as they were
	free     func()
}

// trialOps are all operations, by the names that they have in calls.
var trialOps = []string{"all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all", "gather", "scatter", "send/recv",
	"barrier",
	"all-gather-v", "reduce-scatter-v", "all-to-all-v", "gather-v", "scatter-v"}

// newTrialOf makes a trial of a type by its name.
func newTrialOf(c *Comm, o order) (*trial, error) {
	switch o.Type {
	case "", "f32":
		return newTrial[float32](c, o)
	case "i32":
		return newTrial[int32](c, o)
	case "f64":
		return newTrial[float64](c, o)
	}
	return nil, fmt.Errorf("no trial of type %s", o.Type)
}

func newTrial[T reduce.Element](c *Comm, o order, opts ...Option) (*trial, error) {
	n, me, count, root := c.Size(), c.Rank(), o.Count, o.Root%c.Size()
	tr := &trial{free: func() {}}
	var failed error
	get := func(n int) []T {
		if !o.Registered {
			return make([]T, n)
		}
		b, err := Alloc[T](c, n)
		if err != nil {
			failed = err
			return make([]T, n)
		}
		before := tr.free
		tr.free = func() {
			before()
			if len(b) > 0 {
				_ = Free(c, b)
			}
		}
		return b
	}
	data := newInputs[T](n, Sum)
	fill := func(b []T) []T { return data.fill(b, me) }
	by := Sum
	if o.Max {
		by = Max
	}
	var src, dst []T
	check := func(what string, got []T, want func(i int) T) error {
		for i := range got {
			if w := want(i); got[i] != w {
				return fmt.Errorf("%s: element %d of %d is %v, not %v", what, i, len(got), got[i], w)
			}
		}
		return nil
	}
	own := func(i int) T { return data.at(me, i) }
	tr.intact = func() error { return check("input", src, own) }
	result := func(want func(i int) T) {
		tr.complete = func() error {
			if err := check("result", dst, want); err != nil || op.Overlap(reduce.Bytes(src), reduce.Bytes(dst)) {
				return err
			}
			return tr.intact()
		}
	}
	folded := data.sum
	counts := make([]int, n) // of blocks of different lengths
	for p := range counts {
		counts[p] = count + 3*p
	}
	at := func(p int) int { return total(counts[:p]) }
	switch o.Op {
	case "all-reduce":
		src = fill(get(count))
		if dst = src; !o.InPlace {
			dst = get(count)
		}
		result(folded)
		tr.run = func(ctx context.Context) error { return AllReduceTo(ctx, c, dst, src, by, opts...) }
	case "reduce-scatter":
		src = fill(get(n * count))
		if dst = src[me*count:][:count]; !o.InPlace {
			dst = get(count)
		}
		result(func(i int) T { return folded(me*count + i) })
		tr.run = func(ctx context.Context) error { return ReduceScatter(ctx, c, dst, src, by, opts...) }
	case "all-gather":
		dst = get(n * count)
		if src = dst[me*count:][:count]; !o.InPlace {
			src = get(count)
		}
		fill(src)
		result(func(i int) T { return data.at(i/count, i%count) })
		tr.run = func(ctx context.Context) error { return AllGather(ctx, c, dst, src, opts...) }
	case "broadcast":
		dst = fill(get(count))
		if me == root {
			src = dst
		}
		result(func(i int) T { return data.at(root, i) })
		tr.run = func(ctx context.Context) error { return Broadcast(ctx, c, dst, root, opts...) }
	case "reduce":
		src = fill(get(count))
		if me == root {
			if dst = src; !o.InPlace {
				dst = get(count)
			}
		}
		result(folded)
		tr.run = func(ctx context.Context) error { return Reduce(ctx, c, dst, src, by, root, opts...) }
	case "all-to-all":
		src = fill(get(n * count))
		if dst = src; !o.InPlace {
			dst = get(n * count)
		}
		result(func(i int) T { return data.at(i/count, me*count+i%count) })
		tr.run = func(ctx context.Context) error { return AllToAll(ctx, c, dst, src, opts...) }
	case "gather":
		src = fill(get(count))
		if me == root {
			dst = get(n * count)
		}
		result(func(i int) T { return data.at(i/count, i%count) })
		tr.run = func(ctx context.Context) error { return Gather(ctx, c, dst, src, root, opts...) }
	case "scatter":
		if me == root {
			src = fill(get(n * count))
		}
		dst = get(count)
		result(func(i int) T { return data.at(root, me*count+i) })
		tr.run = func(ctx context.Context) error { return Scatter(ctx, c, dst, src, root, opts...) }
	case "send/recv": // everybody sends to the next and receives from the one before
		src, dst = fill(get(count)), get(count)
		before := (me - 1 + n) % n
		result(func(i int) T { return data.at(before, i) })
		tr.run = func(ctx context.Context) error {
			if o.InPlace { // which has no other meaning here
				return SendRecv(ctx, c, dst, src, before, (me+1)%n)
			}
			return WaitAll(ctx, SendAsync(ctx, c, src, (me+1)%n), RecvAsync(ctx, c, dst, before))
		}
	case "barrier":
		result(own)
		tr.run = func(ctx context.Context) error { return Barrier(ctx, c, opts...) }
	case "all-gather-v":
		src, dst = fill(get(counts[me])), get(at(n))
		block := func(i int) int {
			p := 0
			for i >= at(p+1) {
				p++
			}
			return p
		}
		result(func(i int) T { return data.at(block(i), i-at(block(i))) })
		tr.run = func(ctx context.Context) error { return AllGatherV(ctx, c, dst, src, counts) }
	case "reduce-scatter-v":
		src, dst = fill(get(at(n))), get(counts[me])
		result(func(i int) T { return folded(at(me) + i) })
		tr.run = func(ctx context.Context) error { return ReduceScatterV(ctx, c, dst, src, counts, by) }
	case "all-to-all-v": // rank r sends count+r+p elements to p
		sends, recvs := make([]int, n), make([]int, n)
		for p := range n {
			sends[p], recvs[p] = count+me+p, count+me+p
		}
		src, dst = fill(get(total(sends))), get(total(recvs))
		result(func(i int) T {
			r := 0
			for i >= recvs[r] {
				i -= recvs[r]
				r++
			}
			for p := range me {
				i += count + r + p
			}
			return data.at(r, i)
		})
		tr.run = func(ctx context.Context) error { return AllToAllV(ctx, c, dst, src, recvs, sends) }
	case "gather-v":
		src = fill(get(counts[me]))
		if me == root {
			dst = get(at(n))
		}
		result(func(i int) T {
			p := 0
			for i >= at(p+1) {
				p++
			}
			return data.at(p, i-at(p))
		})
		tr.run = func(ctx context.Context) error { return GatherV(ctx, c, dst, src, counts, root) }
	case "scatter-v":
		if me == root {
			src = fill(get(at(n)))
		}
		dst = get(counts[me])
		result(func(i int) T { return data.at(root, at(me)+i) })
		tr.run = func(ctx context.Context) error { return ScatterV(ctx, c, dst, src, counts, root) }
	default:
		return nil, fmt.Errorf("no operation %q; known: %s", o.Op, strings.Join(trialOps, ", "))
	}
	return tr, failed
}

// serve does what the parent orders until it orders to leave.
func (k *kid) serve() error {
	ctx := context.Background()
	for {
		var o order
		if err := k.orders.Decode(&o); err != nil {
			return err
		}
		switch o.Do {
		case "leave":
			return nil
		case "exit":
			k.say(event{At: "exit"})
			os.Exit(0)
		case "dup":
			if k.dup != nil {
				_ = k.dup.Close()
			}
			var err error
			if k.dup, err = k.c.Dup(context.Background()); err != nil {
				return err
			}
			k.say(event{At: "dup"})
		case "shrink":
			if k.dup != nil {
				_ = k.dup.Close()
				k.dup = nil
			}
			c, err := k.c.Shrink(ctx)
			if err != nil {
				return err
			}
			k.c = c
			k.say(event{At: "shrink", Value: fmt.Appendf(nil, "[%d, %d, %d]", c.Rank(), c.Size(), c.Epoch())})
		case "op":
			if err := k.op(o); err != nil {
				return err
			}
		case "ports":
			list := "["
			for i, p := range listening() {
				if i > 0 {
					list += ","
				}
				list += strconv.Itoa(p)
			}
			k.say(event{At: "ports", Value: []byte(list + "]")})
		case "counters":
			list := "{"
			for i, c := range k.c.Counters() {
				if i > 0 {
					list += ","
				}
				list += fmt.Sprintf("%q: %d", c.Name, c.Value)
			}
			k.say(event{At: "counters", Value: []byte(list + "}")})
		default:
			return fmt.Errorf("no order %q", o.Do)
		}
	}
}

// op carries out one or several operations (names separated by commas) on the
// communicator of the case and tells how the first of them that failed did, or
// the last.
func (k *kid) op(o order) error {
	c := k.dup
	k.pulse.worst.Store(0)
	inside := make(chan struct{})
	over := make(chan struct{})
	if o.Tell || o.Cut || o.Exit {
		before := c.entered()
		go func() {
			defer close(inside)
			c.untilInside(before, over)
			if o.Cut {
				cutStream(o.Root)
			}
			if o.Exit { // without a word to anybody but the parent
				k.say(event{At: "exit"})
				os.Exit(0)
			}
			if o.Tell {
				k.say(event{At: "inside"})
			}
		}()
	} else {
		close(inside)
	}
	if o.Delay > 0 {
		time.Sleep(o.Delay) // the fault itself
	}
	if o.Moves > 0 {
		if err := c.doom(o.Moves, o.Signal); err != nil {
			return err
		}
	} else if o.Pieces > 0 {
		mine := c.group.Mine()
		go signalGrown(mine, mine.Staged().Load()+uint64(o.Pieces), o.Signal, over)
	} else if o.Signal != 0 {
		go c.signalAt((c.seq+1)<<24+uint64(o.Steps), o.Signal, over)
	}
	var e event
	for range max(o.Times, 1) {
		for op := range strings.SplitSeq(o.Op, ",") {
			one := o
			one.Op = op
			tr, err := newTrialOf(c, one)
			if err != nil {
				return err
			}
			ctx, cancel := context.Background(), func() {}
			if o.Limit > 0 {
				ctx, cancel = context.WithTimeout(ctx, o.Limit)
			}
			began := clock.Now()
			err = tr.run(ctx)
			e = tell("op", err)
			cancel()
			e.Began, e.Data = began, "complete"
			check := tr.complete
			if err != nil {
				e.Data, check = "intact", tr.intact
			}
			if err := check(); err != nil {
				e.Data = op + ": " + err.Error()
			}
			if err == nil {
				tr.free() // after a failure others may still be looking at it
			}
			if err != nil || e.Data != "complete" {
				break
			}
		}
		if e.Err != "" || e.Data != "complete" {
			break
		}
	}
	close(over)
	<-inside
	e.Stall = time.Duration(k.pulse.worst.Swap(0))
	k.say(e)
	return nil
}

// entered is the last operation that the rank entered.
func (c *Comm) entered() uint64 {
	return c.group.Mine().Entered()
}

// untilInside returns once the rank entered an operation after another, or a
// send or receive, or all are over.
func (c *Comm) untilInside(before uint64, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		default:
		}
		if c.entered() > before {
			return
		}
		if c.group.Mine().Pairing() >= 0 {
			return
		}
		runtime.Gosched()
	}
}

// signalAt sends the process a signal once its steps of a trade are at a number, and
// SIGKILL when all is over at the latest.
func (c *Comm) signalAt(at uint64, s syscall.Signal, over <-chan struct{}) {
	for c.group.Mine().Steps().Flag().Load() < at {
		select {
		case <-over:
			if s != syscall.SIGKILL {
				return
			}
			at = 0
		default:
		}
	}
	_ = syscall.Kill(os.Getpid(), s)
}

// sockets calls do with every TCP socket of the process.
func sockets(do func(fd int, listens bool)) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	slices.Sort(links)
	for _, l := range links {
		fd, err := strconv.Atoi(filepath.Base(l))
		if err != nil {
			continue
		}
		if p, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || p != unix.IPPROTO_TCP &&
			p != unix.IPPROTO_MPTCP { // what net listens with
			continue
		}
		listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		do(fd, err == nil && listens != 0)
	}
}

func portOf(a unix.Sockaddr, err error) int {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}

// listening gives the ports that the process listens at.
func listening() []int {
	var list []int
	sockets(func(fd int, listens bool) {
		if listens {
			list = append(list, portOf(unix.Getsockname(fd)))
		}
	})
	return list
}

// cutStream shuts the k-th stream down, as a middlebox that forgot it would;
// connections of the meeting are not counted.
func cutStream(k int) {
	master, _ := strconv.Atoi(os.Getenv("MASTER_PORT"))
	var list []int
	sockets(func(fd int, listens bool) {
		if !listens && portOf(unix.Getpeername(fd)) != master && portOf(unix.Getsockname(fd)) != master {
			list = append(list, fd)
		}
	})
	if len(list) > 0 {
		_ = unix.Shutdown(list[k%len(list)], unix.SHUT_RDWR)
	}
}
