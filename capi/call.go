//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/weft-fabric/weft/run/comm"
)

// call is a call as C describes it, checked: what is left depends on the communicator.
type call struct {
	a      C.weft_call
	kind   kind
	reduce comm.Op
	n, m   int   // elements of kind: weft_call.count, send_count
	counts []int // the same of each rank; nil without
	sends  []int
}

// kind is an element type with the calls of package comm for it.
type kind struct {
	size  int
	calls *calls
}

// calls are those of package comm for one element type, on memory of C.
type calls struct {
	allReduce      func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, op comm.Op, o []comm.Option) error
	reduceScatter  func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, op comm.Op, o []comm.Option) error
	reduceScatterV func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, counts []int, op comm.Op, o []comm.Option) error
	allGather      func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, o []comm.Option) error
	allGatherV     func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, counts []int, o []comm.Option) error
	broadcast      func(ctx context.Context, c *comm.Comm, buf unsafe.Pointer, n, root int, o []comm.Option) error
	reduce         func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, op comm.Op, root int, o []comm.Option) error
	allToAll       func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, o []comm.Option) error
	allToAllV      func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, recvs, sends []int, o []comm.Option) error
	gather         func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n, root int, o []comm.Option) error
	gatherV        func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, counts []int, root int, o []comm.Option) error
	scatter        func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n, root int, o []comm.Option) error
	scatterV       func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, counts []int, root int, o []comm.Option) error
	scan           func(ctx context.Context, c *comm.Comm, buf unsafe.Pointer, n int, op comm.Op, before bool) error
	send           func(ctx context.Context, c *comm.Comm, src unsafe.Pointer, n, to int, o []comm.Option) error
	recv           func(ctx context.Context, c *comm.Comm, dst unsafe.Pointer, n, from int, o []comm.Option) error
	sendRecv       func(ctx context.Context, c *comm.Comm, dst unsafe.Pointer, n int, src unsafe.Pointer, m, from, to int,
		o []comm.Option) error
	sendTag      func(ctx context.Context, c *comm.Comm, src unsafe.Pointer, n, to, tag int) error
	recvTag      func(ctx context.Context, c *comm.Comm, dst unsafe.Pointer, n, from, tag int) (comm.Status, error)
	sendTagAsync func(ctx context.Context, c *comm.Comm, src unsafe.Pointer, n, to, tag int) *comm.Handle
	recvTagAsync func(ctx context.Context, c *comm.Comm, dst unsafe.Pointer, n, from, tag int, status *comm.Status) *comm.Handle
}

func callsOf[T comm.Element]() *calls {
	s := func(p unsafe.Pointer, n int) []T { return unsafe.Slice((*T)(p), n) }
	sum := func(counts []int) (n int) {
		for _, k := range counts {
			n += k
		}
		return n
	}
	return &calls{
		allReduce: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, op comm.Op, o []comm.Option) error {
			return comm.AllReduceTo(ctx, c, s(dst, n), s(src, n), op, o...)
		},
		reduceScatter: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, op comm.Op, o []comm.Option) error {
			return comm.ReduceScatter(ctx, c, s(dst, n), s(src, n*c.Size()), op, o...)
		},
		reduceScatterV: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, counts []int, op comm.Op, o []comm.Option) error {
			return comm.ReduceScatterV(ctx, c, s(dst, counts[c.Rank()]), s(src, sum(counts)), counts, op, o...)
		},
		allGather: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, o []comm.Option) error {
			return comm.AllGather(ctx, c, s(dst, n*c.Size()), s(src, n), o...)
		},
		allGatherV: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, counts []int, o []comm.Option) error {
			return comm.AllGatherV(ctx, c, s(dst, sum(counts)), s(src, counts[c.Rank()]), counts, o...)
		},
		broadcast: func(ctx context.Context, c *comm.Comm, buf unsafe.Pointer, n, root int, o []comm.Option) error {
			return comm.Broadcast(ctx, c, s(buf, n), root, o...)
		},
		reduce: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, op comm.Op, root int, o []comm.Option) error {
			m := 0
			if c.Rank() == root {
				m = n
			}
			return comm.Reduce(ctx, c, s(dst, m), s(src, n), op, root, o...)
		},
		allToAll: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n int, o []comm.Option) error {
			return comm.AllToAll(ctx, c, s(dst, n*c.Size()), s(src, n*c.Size()), o...)
		},
		allToAllV: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, recvs, sends []int, o []comm.Option) error {
			return comm.AllToAllV(ctx, c, s(dst, sum(recvs)), s(src, sum(sends)), recvs, sends, o...)
		},
		gather: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n, root int, o []comm.Option) error {
			m := 0
			if c.Rank() == root {
				m = n * c.Size()
			}
			return comm.Gather(ctx, c, s(dst, m), s(src, n), root, o...)
		},
		gatherV: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, counts []int, root int, o []comm.Option) error {
			m := 0
			if c.Rank() == root {
				m = sum(counts)
			}
			return comm.GatherV(ctx, c, s(dst, m), s(src, counts[c.Rank()]), counts, root, o...)
		},
		scatter: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, n, root int, o []comm.Option) error {
			m := 0
			if c.Rank() == root {
				m = n * c.Size()
			}
			return comm.Scatter(ctx, c, s(dst, n), s(src, m), root, o...)
		},
		scatterV: func(ctx context.Context, c *comm.Comm, dst, src unsafe.Pointer, counts []int, root int, o []comm.Option) error {
			m := 0
			if c.Rank() == root {
				m = sum(counts)
			}
			return comm.ScatterV(ctx, c, s(dst, counts[c.Rank()]), s(src, m), counts, root, o...)
		},
		scan: func(ctx context.Context, c *comm.Comm, buf unsafe.Pointer, n int, op comm.Op, before bool) error {
			if before {
				return comm.ExScan(ctx, c, s(buf, n), op)
			}
			return comm.Scan(ctx, c, s(buf, n), op)
		},
		send: func(ctx context.Context, c *comm.Comm, src unsafe.Pointer, n, to int, o []comm.Option) error {
			return comm.Send(ctx, c, s(src, n), to, o...)
		},
		recv: func(ctx context.Context, c *comm.Comm, dst unsafe.Pointer, n, from int, o []comm.Option) error {
			return comm.Recv(ctx, c, s(dst, n), from, o...)
		},
		sendRecv: func(ctx context.Context, c *comm.Comm, dst unsafe.Pointer, n int, src unsafe.Pointer, m, from, to int, o []comm.Option) error {
			return comm.SendRecv(ctx, c, s(dst, n), s(src, m), from, to, o...)
		},
		sendTag: func(ctx context.Context, c *comm.Comm, src unsafe.Pointer, n, to, tag int) error {
			return comm.SendTag(ctx, c, s(src, n), to, tag)
		},
		recvTag: func(ctx context.Context, c *comm.Comm, dst unsafe.Pointer, n, from, tag int) (comm.Status, error) {
			return comm.RecvTag(ctx, c, s(dst, n), from, tag)
		},
		sendTagAsync: func(ctx context.Context, c *comm.Comm, src unsafe.Pointer, n, to, tag int) *comm.Handle {
			return comm.SendTagAsync(ctx, c, s(src, n), to, tag)
		},
		recvTagAsync: func(ctx context.Context, c *comm.Comm, dst unsafe.Pointer, n, from, tag int, status *comm.Status) *comm.Handle {
			return comm.RecvTagAsync(ctx, c, s(dst, n), from, tag, status)
		},
	}
}

var (
	uint8Calls   = callsOf[uint8]()
	float32Calls = callsOf[float32]()
	float64Calls = callsOf[float64]()
)

// kinds are the element types that package comm has.
var kinds = map[C.weft_type]kind{
	C.WEFT_INT8: {1, callsOf[int8]()}, C.WEFT_INT16: {2, callsOf[int16]()}, C.WEFT_INT32: {4, callsOf[int32]()},
	C.WEFT_INT64: {8, callsOf[int64]()},
	C.WEFT_UINT8: {1, uint8Calls}, C.WEFT_UINT16: {2, callsOf[uint16]()}, C.WEFT_UINT32: {4, callsOf[uint32]()},
	C.WEFT_UINT64:  {8, callsOf[uint64]()},
	C.WEFT_FLOAT16: {2, callsOf[comm.Float16]()}, C.WEFT_BFLOAT16: {2, callsOf[comm.BFloat16]()}, C.WEFT_FLOAT32: {4, float32Calls},
	C.WEFT_FLOAT64:     {8, float64Calls},
	C.WEFT_FLOAT8_E4M3: {1, callsOf[comm.Float8E4M3]()}, C.WEFT_FLOAT8_E5M2: {1, callsOf[comm.Float8E5M2]()},
	C.WEFT_BOOL: {1, uint8Calls}, C.WEFT_COMPLEX64: {4, float32Calls}, C.WEFT_COMPLEX128: {8, float64Calls},
}

// ofBool is what reductions of truth values are on bytes that are 0 or 1.
var ofBool = map[comm.Op]comm.Op{comm.Sum: comm.BOr, comm.Max: comm.BOr, comm.BOr: comm.BOr, comm.Prod: comm.BAnd, comm.Min: comm.BAnd,
	comm.BAnd: comm.BAnd, comm.BXor: comm.BXor}

var opNames = map[C.int32_t]string{C.WEFT_ALL_REDUCE: "all-reduce", C.WEFT_REDUCE_SCATTER: "reduce-scatter",
	C.WEFT_ALL_GATHER: "all-gather", C.WEFT_BROADCAST: "broadcast",
	C.WEFT_REDUCE: "reduce", C.WEFT_ALL_TO_ALL: "all-to-all", C.WEFT_GATHER: "gather", C.WEFT_SCATTER: "scatter", C.WEFT_BARRIER: "barrier",
	C.WEFT_SCAN: "scan", C.WEFT_EXSCAN: "exscan",
	C.WEFT_SEND: "send", C.WEFT_RECV: "receive", C.WEFT_SEND_RECV: "send/recv", C.WEFT_PROBE: "probe", C.WEFT_PUT: "put", C.WEFT_GET: "get",
	C.WEFT_COMPARE_SWAP: "compare and swap", C.WEFT_FETCH_ADD: "fetch and add", C.WEFT_NOTIFY: "notify", C.WEFT_PUT_NOTIFY: "put and notify"}

// reduces reports whether an operation has a reduction.
func reduces(op C.int32_t) bool {
	switch op {
	case C.WEFT_ALL_REDUCE, C.WEFT_REDUCE_SCATTER, C.WEFT_REDUCE, C.WEFT_SCAN, C.WEFT_EXSCAN:
		return true
	}
	return false
}

// asked finds the communicator of a call, and reads the call.
func asked(n C.weft_comm, from *C.weft_call) (*comm.Comm, *call, error) {
	c, err := comms.get(n)
	if err != nil {
		return nil, nil, err
	}
	k, err := read(from, c)
	return c, k, err
}

// read takes a call out of C's memory, where it may be shorter than this version's or longer, and checks it.
func read(from *C.weft_call, c *comm.Comm) (*call, error) {
	if from == nil {
		return nil, errors.New("no call was given")
	}
	k := &call{}
	known := uint64(unsafe.Sizeof(k.a))
	if from.size < 64 || from.size > 4096 {
		return nil, fmt.Errorf("weft_call.size is %d; set it to sizeof(weft_call), which is %d here", from.size, known)
	}
	given := unsafe.Slice((*byte)(unsafe.Pointer(from)), from.size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&k.a)), known), given)
	for _, b := range given[min(known, uint64(len(given))):] {
		if b != 0 {
			return nil, fmt.Errorf("weft_call of %d bytes is newer than this library, which supports %d bytes", from.size, known)
		}
	}
	return k, k.check(c)
}

// limit is more bytes than a process can address.
const limit C.int64_t = 1 << 47

// check checks a call and works out what it means.
func (k *call) check(c *comm.Comm) error {
	name, known := opNames[k.a.op]
	if !known {
		return fmt.Errorf("weft_call.op is %d, which is not an operation", k.a.op)
	}
	switch k.a.device {
	case 0, 1, 3: // 3 is the host's, pinned
	case onCUDA:
		if err := k.checkDevice(name); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s: memory of DLPack device %d: this library moves memory of the host and of CUDA; copy it there: %w",
			name, k.a.device, errDevice)
	}
	switch k.a.op {
	case C.WEFT_BARRIER, C.WEFT_PROBE, C.WEFT_NOTIFY:
		return nil
	case C.WEFT_COMPARE_SWAP, C.WEFT_FETCH_ADD:
		if k.a.was == nil {
			return fmt.Errorf("%s: weft_call.was is NULL; it gets what was there", name)
		}
		return nil
	}
	if k.kind, known = kinds[k.a._type]; !known {
		return fmt.Errorf("%s: type %#x (DLPack code %d, %d bits) is not supported", name, k.a._type, k.a._type&0xff, k.a._type>>8)
	}
	per := C.int64_t(1) // elements of kind in one of the caller's
	if k.a._type&0xff == 5 {
		per = 2 // a complex number
	}
	if reduces(k.a.op) {
		if err := k.reduction(name); err != nil {
			return err
		}
	}
	if k.a.count < 0 || k.a.send_count < 0 {
		return fmt.Errorf("%s: count %d is below 0", name, min(k.a.count, k.a.send_count))
	}
	if most := limit / C.int64_t(k.kind.size*c.Size()) / per; k.a.count > most || k.a.send_count > most {
		return fmt.Errorf("%s: %d elements are more than memory can hold", name, max(k.a.count, k.a.send_count))
	}
	k.n, k.m = int(per*k.a.count), int(per*k.a.send_count)
	var err error
	if k.counts, err = lengths(name, "counts", k.a.counts, c.Size(), per); err != nil {
		return err
	}
	if k.sends, err = lengths(name, "send_counts", k.a.send_counts, c.Size(), per); err != nil {
		return err
	}
	if k.a.op == C.WEFT_ALL_TO_ALL && (k.counts == nil) != (k.sends == nil) {
		return fmt.Errorf("%s: counts and send_counts go together", name)
	}
	return k.present(name, c)
}

// reduction works out the reduction.
func (k *call) reduction(name string) error {
	k.reduce = comm.Op(k.a.reduce)
	if k.a.reduce < C.WEFT_SUM || k.a.reduce > C.WEFT_BXOR {
		return fmt.Errorf("%s: reduction %d does not exist; use WEFT_SUM (1) to WEFT_BXOR (9)", name, k.a.reduce)
	}
	switch k.a._type {
	case C.WEFT_BOOL:
		op, ok := ofBool[k.reduce]
		if !ok {
			return fmt.Errorf("%s: %v of truth values has no meaning", name, k.reduce)
		}
		k.reduce = op
	case C.WEFT_COMPLEX64, C.WEFT_COMPLEX128:
		if k.reduce != comm.Sum && k.reduce != comm.Avg && k.reduce != comm.PreMulSum {
			return fmt.Errorf("%s: %v is not supported for complex types; use sum, avg or premulsum", name, k.reduce)
		}
	}
	return nil
}

// lengths reads the lengths of blocks.
func lengths(name, what string, from *C.int64_t, ranks int, per C.int64_t) ([]int, error) {
	if from == nil {
		return nil, nil
	}
	list := make([]int, ranks)
	for i, n := range unsafe.Slice(from, ranks) {
		if n < 0 || n > limit/16/C.int64_t(ranks) {
			return nil, fmt.Errorf("%s: %s[%d] is %d; want 0 or more, and what memory can hold", name, what, i, n)
		}
		list[i] = int(per * n)
	}
	return list, nil
}

// present refuses buffers that are missing.
func (k *call) present(name string, c *comm.Comm) error {
	var dst, src int // elements
	n, all, root := k.n, k.n*c.Size(), c.Rank() == int(k.a.root)
	if k.counts != nil {
		n, all = k.counts[c.Rank()], 0
		for _, x := range k.counts {
			all += x
		}
	}
	if !root && (k.a.op == C.WEFT_REDUCE || k.a.op == C.WEFT_GATHER || k.a.op == C.WEFT_SCATTER) {
		all = 0
	}
	switch k.a.op {
	case C.WEFT_ALL_REDUCE:
		dst, src = n, n
	case C.WEFT_REDUCE:
		dst, src = min(n, all), n
	case C.WEFT_ALL_TO_ALL:
		dst, src = all, all
		if k.sends != nil {
			src = 0
			for _, x := range k.sends {
				src += x
			}
		}
	case C.WEFT_REDUCE_SCATTER, C.WEFT_SCATTER:
		dst, src = n, all
	case C.WEFT_ALL_GATHER, C.WEFT_GATHER:
		dst, src = all, n
	case C.WEFT_SEND, C.WEFT_PUT, C.WEFT_PUT_NOTIFY:
		src = n
	case C.WEFT_SEND_RECV:
		dst, src = n, k.m
	default:
		dst = n
	}
	if k.a.dst == nil && dst > 0 {
		return fmt.Errorf("%s: dst is NULL, %d elements are needed", name, dst)
	}
	if k.a.src == nil && src > 0 {
		return fmt.Errorf("%s: src is NULL, %d elements are needed", name, src)
	}
	return nil
}

// do makes a call that has a form in package comm which takes options.
func (k *call) do(ctx context.Context, c *comm.Comm, o ...comm.Option) error {
	f, dst, src, root := k.kind.calls, k.a.dst, unsafe.Pointer(k.a.src), int(k.a.root)
	if k.reduce == comm.PreMulSum {
		o = append(o, comm.Factor(float64(k.a.factor)))
	}
	if k.a.cause != 0 {
		o = append(o, comm.CausedBy(uint64(k.a.cause)))
	}
	switch k.a.op {
	case C.WEFT_BARRIER:
		return comm.Barrier(ctx, c, o...)
	case C.WEFT_ALL_REDUCE:
		return f.allReduce(ctx, c, dst, src, k.n, k.reduce, o)
	case C.WEFT_REDUCE_SCATTER:
		if k.counts != nil {
			return f.reduceScatterV(ctx, c, dst, src, k.counts, k.reduce, o)
		}
		return f.reduceScatter(ctx, c, dst, src, k.n, k.reduce, o)
	case C.WEFT_ALL_GATHER:
		if k.counts != nil {
			return f.allGatherV(ctx, c, dst, src, k.counts, o)
		}
		return f.allGather(ctx, c, dst, src, k.n, o)
	case C.WEFT_BROADCAST:
		return f.broadcast(ctx, c, dst, k.n, root, o)
	case C.WEFT_REDUCE:
		return f.reduce(ctx, c, dst, src, k.n, k.reduce, root, o)
	case C.WEFT_ALL_TO_ALL:
		if k.counts != nil {
			return f.allToAllV(ctx, c, dst, src, k.counts, k.sends, o)
		}
		return f.allToAll(ctx, c, dst, src, k.n, o)
	case C.WEFT_GATHER:
		if k.counts != nil {
			return f.gatherV(ctx, c, dst, src, k.counts, root, o)
		}
		return f.gather(ctx, c, dst, src, k.n, root, o)
	case C.WEFT_SCATTER:
		if k.counts != nil {
			return f.scatterV(ctx, c, dst, src, k.counts, root, o)
		}
		return f.scatter(ctx, c, dst, src, k.n, root, o)
	case C.WEFT_SEND:
		return f.send(ctx, c, src, k.n, int(k.a.peer), o)
	case C.WEFT_RECV:
		return f.recv(ctx, c, dst, k.n, int(k.a.peer), o)
	case C.WEFT_SEND_RECV:
		return f.sendRecv(ctx, c, dst, k.n, src, k.m, int(k.a.from), int(k.a.peer), o)
	}
	return fmt.Errorf("%s is not a call that can be started: use weft_run", opNames[k.a.op])
}

// tagged reports whether a call is a message with a tag.
func (k *call) tagged() bool {
	return (k.a.op == C.WEFT_SEND || k.a.op == C.WEFT_RECV) && k.a.tag != C.WEFT_NO_TAG
}

// now makes a call and returns when it is over.
func (k *call) now(ctx context.Context, c *comm.Comm) (s comm.Status, err error) {
	f, peer, tag := k.kind.calls, int(k.a.peer), int(k.a.tag)
	switch {
	case k.a.device == onCUDA:
		return k.nowOnDevice(c)
	case k.tagged() && k.a.op == C.WEFT_SEND:
		return s, f.sendTag(ctx, c, unsafe.Pointer(k.a.src), k.n, peer, tag)
	case k.tagged():
		return f.recvTag(ctx, c, k.a.dst, k.n, peer, tag)
	case k.a.op == C.WEFT_PROBE:
		return comm.Probe(ctx, c, peer, tag)
	case k.a.op == C.WEFT_SCAN, k.a.op == C.WEFT_EXSCAN:
		return s, f.scan(ctx, c, k.a.dst, k.n, k.reduce, k.a.op == C.WEFT_EXSCAN)
	case k.a.op >= C.WEFT_PUT:
		return s, k.post(c).Wait(ctx)
	}
	if k.a.op == C.WEFT_RECV {
		s = comm.Status{From: peer, Tag: int(C.WEFT_NO_TAG), Count: k.n}
	}
	return s, k.do(ctx, c)
}

// post posts a one-sided call.
func (k *call) post(c *comm.Comm) comm.Ticket {
	peer, key, bytes := int(k.a.peer), comm.Key(k.a.key), k.n*k.kind.size
	switch k.a.op {
	case C.WEFT_PUT:
		return comm.Put(c, key, unsafe.Slice((*byte)(k.a.src), bytes), peer)
	case C.WEFT_GET:
		return comm.Get(c, unsafe.Slice((*byte)(k.a.dst), bytes), key, peer)
	case C.WEFT_COMPARE_SWAP:
		return comm.CompareSwap(c, key, uint64(k.a.compare), uint64(k.a.operand), (*uint64)(k.a.was), peer)
	case C.WEFT_FETCH_ADD:
		return comm.FetchAdd(c, key, uint64(k.a.operand), (*uint64)(k.a.was), peer)
	case C.WEFT_PUT_NOTIFY:
		return comm.PutNotify(c, key, unsafe.Slice((*byte)(k.a.src), bytes), uint32(k.a.value), peer)
	}
	return comm.Notify(c, uint32(k.a.value), peer)
}

// small reports whether a collective is carried out by who waits for it, if that is soon: it takes little more time than to wake
// somebody else.
func (k *call) small(c *comm.Comm) bool {
	n := k.n
	for _, x := range k.counts {
		n += x
	}
	switch k.a.op {
	case C.WEFT_SEND, C.WEFT_RECV, C.WEFT_SEND_RECV:
		return false
	case C.WEFT_ALL_GATHER, C.WEFT_REDUCE_SCATTER, C.WEFT_ALL_TO_ALL, C.WEFT_GATHER, C.WEFT_SCATTER:
		n *= c.Size()
	}
	return n*k.kind.size <= 1<<20
}

// later starts a call.
func (k *call) later(ctx context.Context, c *comm.Comm, s *comm.Status) *comm.Handle {
	f, peer, tag := k.kind.calls, int(k.a.peer), int(k.a.tag)
	switch {
	case k.tagged() && k.a.op == C.WEFT_SEND:
		return f.sendTagAsync(ctx, c, unsafe.Pointer(k.a.src), k.n, peer, tag)
	case k.tagged():
		return f.recvTagAsync(ctx, c, k.a.dst, k.n, peer, tag, s)
	}
	if k.a.op == C.WEFT_RECV {
		*s = comm.Status{From: peer, Tag: int(C.WEFT_NO_TAG), Count: k.n}
	}
	return comm.Prepare(func(o comm.Option) error {
		if k.small(c) {
			return k.do(ctx, c, o, comm.AtWait())
		}
		return k.do(ctx, c, o)
	}).Start(ctx)
}
