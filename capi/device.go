//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/device"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/cuda"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// pending is a call under way: of package comm, or on memory of GPUs.
type pending interface {
	Done() <-chan struct{}
	Wait(context.Context) error
}

const onCUDA = 2 // DLPack's kind of device

// gpus is the GPUs of a communicator's ranks. The first call on memory of one opens them, on all ranks.
type gpus struct {
	mu      sync.Mutex
	g       *device.Group
	ordinal int

	mail mail
}

var (
	groups sync.Map                      // *comm.Comm to *gpus
	ofGPUs atomic.Pointer[device.Config] // WEFT_CUDA and WEFT_CUDA_SUMS as the last join was told
)

// groupOf opens the GPUs of a communicator, or gives those that are open.
func groupOf(ctx context.Context, c *comm.Comm, ordinal int) (*device.Group, error) {
	v, _ := groups.LoadOrStore(c, &gpus{})
	x := v.(*gpus)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.g == nil {
		cfg := device.Config{}
		if told := ofGPUs.Load(); told != nil {
			cfg = *told
		}
		g, err := device.Open(ctx, c, func() (gpu.Device, error) { return cuda.Open(ordinal) }, cfg)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errDevice, err)
		}
		x.g, x.ordinal = g, ordinal
	}
	if x.ordinal != ordinal {
		return nil, fmt.Errorf("%w: memory of GPU %d; this communicator uses GPU %d here", errDevice, ordinal, x.ordinal)
	}
	return x.g, nil
}

// closeWith ends a communicator with end, and closes the GPUs that were opened for it: some before, those of messages once none is
// under way.
func closeWith(c *comm.Comm, end func() error) error {
	v, ok := groups.LoadAndDelete(c)
	if !ok {
		return end()
	}
	x := v.(*gpus)
	x.mu.Lock()
	defer x.mu.Unlock()
	var err error
	if x.g != nil {
		err = x.g.Close()
	}
	return errors.Join(err, end(), x.mail.close())
}

var deviceOps = map[C.int32_t]sched.Collective{C.WEFT_ALL_REDUCE: sched.AllReduce, C.WEFT_REDUCE_SCATTER: sched.ReduceScatter,
	C.WEFT_ALL_GATHER: sched.AllGather,
	C.WEFT_BROADCAST:  sched.Broadcast, C.WEFT_REDUCE: sched.Reduce, C.WEFT_ALL_TO_ALL: sched.AllToAll, C.WEFT_GATHER: sched.Gather,
	C.WEFT_SCATTER: sched.Scatter,
	C.WEFT_BARRIER: sched.Barrier}

var deviceTypes = map[C.weft_type]reduce.Type{C.WEFT_INT8: reduce.Int8, C.WEFT_INT16: reduce.Int16, C.WEFT_INT32: reduce.Int32,
	C.WEFT_INT64: reduce.Int64,
	C.WEFT_UINT8: reduce.Uint8, C.WEFT_UINT16: reduce.Uint16, C.WEFT_UINT32: reduce.Uint32, C.WEFT_UINT64: reduce.Uint64,
	C.WEFT_FLOAT16: reduce.Float16, C.WEFT_BFLOAT16: reduce.BFloat16, C.WEFT_FLOAT32: reduce.Float32, C.WEFT_FLOAT64: reduce.Float64,
	C.WEFT_FLOAT8_E4M3: reduce.Float8E4M3, C.WEFT_FLOAT8_E5M2: reduce.Float8E5M2,
	C.WEFT_BOOL: reduce.Uint8, C.WEFT_COMPLEX64: reduce.Float32, C.WEFT_COMPLEX128: reduce.Float64}

// message reports whether a call is a message between two ranks.
func (k *call) message() bool {
	return k.a.op == C.WEFT_SEND || k.a.op == C.WEFT_RECV || k.a.op == C.WEFT_SEND_RECV
}

// checkDevice refuses operations that have no form for GPU memory.
func (k *call) checkDevice(name string) error {
	if _, ok := deviceOps[k.a.op]; !ok && !k.message() {
		return fmt.Errorf("%s: not supported on GPU memory; copy it to the host: %w", name, errDevice)
	}
	return nil
}

// onDevice is a call on memory of GPUs.
func (k *call) onDevice(size, rank int) device.Call {
	t := deviceTypes[k.a._type]
	if k.a.op == C.WEFT_BARRIER {
		t = reduce.Uint8
	}
	d := device.Call{Op: deviceOps[k.a.op], Reduce: k.reduce, Root: int(k.a.root), Counts: k.counts, Factor: float64(k.a.factor)}
	s := gpu.Stream(uintptr(k.a.stream))
	d.Stream = &s
	one, all := k.n, k.n*size
	if k.counts != nil {
		one, all = k.counts[rank], 0
		for _, n := range k.counts {
			all += n
		}
	}
	src, dst := one, one
	switch d.Op {
	case sched.ReduceScatter, sched.Scatter:
		src = all
	case sched.AllGather, sched.Gather:
		dst = all
	case sched.AllToAll:
		src, dst = all, all
		if k.sends != nil {
			d.Sends, src = k.sends, 0
			for _, n := range k.sends {
				src += n
			}
		}
	}
	d.Src = device.Memory{At: gpu.Ptr(uintptr(k.a.src)), Type: t, Count: src}
	d.Dst = device.Memory{At: gpu.Ptr(uintptr(k.a.dst)), Type: t, Count: dst}
	return d
}

// begin starts a call.
func (k *call) begin(ctx context.Context, c *comm.Comm, s *comm.Status) (pending, error) {
	if k.a.device != onCUDA {
		return k.later(ctx, c, s), nil
	}
	if k.message() {
		return k.mail(ctx, c, s)
	}
	g, err := groupOf(ctx, c, int(k.a.device_id))
	if err != nil {
		return nil, err
	}
	return g.Start(ctx, k.onDevice(c.Size(), c.Rank())), nil
}

// nowOnDevice makes a call on memory of GPUs and returns when it is over.
func (k *call) nowOnDevice(c *comm.Comm) (status comm.Status, err error) {
	_, err = during(int64(k.a.timeout_ms), func(ctx context.Context) (struct{}, error) {
		if k.message() {
			l, err := k.mail(ctx, c, &status)
			if err != nil {
				return struct{}{}, err
			}
			<-l.done
			return struct{}{}, l.err
		}
		g, err := groupOf(ctx, c, int(k.a.device_id))
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, g.Do(ctx, k.onDevice(c.Size(), c.Rank()))
	})
	return status, err
}

//export goEnqueue
func goEnqueue(n C.weft_comm, from *C.weft_call, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, k, err := asked(n, from)
	if err != nil {
		return fill(e, err)
	}
	if k.a.device != onCUDA || k.message() {
		return fill(e, errors.New("weft_enqueue: the call is not a collective on GPU memory; use weft_run"))
	}
	p := patient(int64(k.a.timeout_ms))
	g, err := groupOf(p, c, int(k.a.device_id))
	if err == nil {
		err = g.Launch(p, k.onDevice(c.Size(), c.Rank()))
	}
	if err != nil && p.gaveUp.Load() {
		err = fmt.Errorf("%w: %w", errInterrupted, err)
	}
	return fill(e, err)
}

// glance is how long a wait looks for an operation to be queued before its thread sleeps: most are within it, and waking a thread takes as
// long.
const glance = 100 * time.Microsecond

//export goBlock
func goBlock(n C.weft_request, stream C.uintptr_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := requests.get(n)
	if err != nil {
		return fill(e, err)
	}
	w, ok := r.handle.(*device.Work)
	if !ok {
		return fill(e, fmt.Errorf("weft_block: the request is not a collective on GPU memory; use weft_wait"))
	}
	err = untilOver(-1, func(d time.Duration) bool {
		for began := time.Now(); time.Since(began) < glance; wait.Yield() {
			select {
			case <-w.Launched():
				return true
			default:
			}
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-w.Launched():
			return true
		case <-t.C:
			return false
		}
	})
	if err != nil {
		return fill(e, err)
	}
	return fill(e, w.Block(gpu.Stream(stream)))
}

// wayOf says how memory of GPUs goes from rank to rank, and why.
func wayOf(c *comm.Comm) string {
	if v, ok := groups.Load(c); ok {
		x := v.(*gpus)
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.g != nil {
			return fmt.Sprintf("%s: %s", x.g.Way(), x.g.Reason())
		}
	}
	return "no call on memory of GPUs was made yet"
}

// setWay reads WEFT_CUDA and WEFT_CUDA_SUMS out of an environment, of which the last entry counts.
func setWay(environ []string) error {
	cfg, err := device.FromEnviron(environ)
	ofGPUs.Store(&cfg)
	return err
}
