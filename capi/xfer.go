//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/cuda"
)

// xferAgent is an agent, the memory that C got from it, by address, and the stores of its objects.
type xferAgent struct {
	*xfer.Agent
	allocs sync.Map // unsafe.Pointer to []byte
	stores sync.Map // blob.Place to nothing

	mu   sync.Mutex
	late []xfer.Notice // those that a caller had no room for
}

// xferPeer is a peer of an agent.
type xferPeer struct {
	*xfer.Peer
	agent *xferAgent
}

// xferRegion is a region of an agent, or of a peer.
type xferRegion struct {
	own  *xfer.Region
	far  *xfer.Remote
	peer *xfer.Peer
}

var (
	xferAgents   = handles[xferAgent]{what: "agent of transfers"}
	xferPeers    = handles[xferPeer]{what: "peer"}
	xferRegions  = handles[xferRegion]{what: "region"}
	xferLists    = handles[xfer.List]{what: "list of descriptors"}
	xferRequests = handles[xfer.Request]{what: "request of a transfer"}
)

// sized copies a structure of C whose size says how much of it the caller knows.
func sized[T any](what string, from *T, size C.uint64_t) (T, error) {
	var f T
	known := uint64(unsafe.Sizeof(f))
	if from == nil || size < 16 || size > 4096 {
		return f, fmt.Errorf("%s.size is %d; set it to sizeof(%s), which is %d here", what, size, what, known)
	}
	given := unsafe.Slice((*byte)(unsafe.Pointer(from)), size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&f)), known), given)
	for _, b := range given[min(known, uint64(len(given))):] {
		if b != 0 {
			return f, fmt.Errorf("%s of %d bytes is newer than this library, which supports %d bytes", what, size, known)
		}
	}
	return f, nil
}

// setting is a value that C gave, or that of the environment.
func setting(given *C.char, name string) string {
	if given != nil {
		return text(given)
	}
	value := ""
	for _, v := range environment() {
		if x, ok := strings.CutPrefix(v, name+"="); ok {
			value = x
		}
	}
	return value
}

func milliseconds(n C.int64_t) time.Duration { return time.Duration(n) * time.Millisecond }

//export goXferOpen
func goXferOpen(from *C.weft_xfer_config, out *C.weft_xfer_agent, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	var size C.uint64_t
	if from != nil {
		size = from.size
	}
	f, err := sized("weft_xfer_config", from, size)
	if err != nil {
		return fill(e, err)
	}
	cfg := xfer.Config{Name: text(f.name), Token: setting(f.token, "WEFT_TOKEN"), Path: text(f.path), Timeout: milliseconds(f.timeout_ms),
		Lease: milliseconds(f.lease_ms), Streams: int(f.streams)}
	if cfg.Timeout < 0 || cfg.Lease < 0 || cfg.Streams < 0 {
		return fill(e, fmt.Errorf("weft_xfer_config: time limit %s, lease %s, %d streams: want 0 or more", cfg.Timeout, cfg.Lease, cfg.Streams))
	}
	if l := text(f.listen); l != "" {
		cfg.Listen = strings.Split(l, ",")
	}
	a, err := xfer.New(cfg)
	if err != nil {
		return fill(e, err)
	}
	*out = xferAgents.add(&xferAgent{Agent: a})
	return fill(e, nil)
}

//export goXferClose
func goXferClose(n C.weft_xfer_agent, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	a, err := xferAgents.take(n)
	if err != nil {
		return fill(e, err)
	}
	_, err = during(0, func(context.Context) (struct{}, error) { return struct{}{}, a.Close() })
	a.stores.Range(func(p, _ any) bool {
		p.(blob.Place).Close()
		return true
	})
	return fill(e, err)
}

//export goXferAlloc
func goXferAlloc(n C.weft_xfer_agent, size C.int64_t, out *unsafe.Pointer, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = nil
	a, err := xferAgents.get(n)
	if err != nil {
		return fill(e, err)
	}
	if size <= 0 {
		return fill(e, fmt.Errorf("%d bytes of memory: want 1 or more", size))
	}
	b, err := a.Alloc(int(size))
	if err != nil {
		return fill(e, err)
	}
	*out = unsafe.Pointer(&b[0])
	a.allocs.Store(*out, b)
	return fill(e, nil)
}

//export goXferFreeMemory
func goXferFreeMemory(n C.weft_xfer_agent, p unsafe.Pointer, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	if p == nil {
		return fill(e, nil)
	}
	a, err := xferAgents.get(n)
	if err != nil {
		return fill(e, err)
	}
	b, ok := a.allocs.LoadAndDelete(p)
	if !ok {
		return fill(e, fmt.Errorf("%p was not got from weft_xfer_alloc, or was freed", p))
	}
	return fill(e, a.Free(b.([]byte)))
}

// registered makes storage a region of an agent.
func registered(n C.weft_xfer_agent, name *C.char, access C.int, out *C.weft_region, e *C.weft_error,
	open func(a *xferAgent) (xfer.Storage, error)) C.int {
	*out = 0
	a, err := xferAgents.get(n)
	if err != nil {
		return fill(e, err)
	}
	if access < 0 || access > C.WEFT_XFER_MAY_READ|C.WEFT_XFER_MAY_WRITE {
		return fill(e, fmt.Errorf("region %q: access %d; want WEFT_XFER_MAY_READ, WEFT_XFER_MAY_WRITE, or 0 for both", text(name), access))
	}
	s, err := open(a)
	if err != nil {
		return fill(e, fmt.Errorf("region %q: %w", text(name), err))
	}
	r, err := a.Register(text(name), s, xfer.Access(access))
	if err != nil {
		s.Close()
		return fill(e, err)
	}
	*out = xferRegions.add(&xferRegion{own: r})
	return fill(e, nil)
}

//export goXferRegister
func goXferRegister(n C.weft_xfer_agent, name *C.char, p unsafe.Pointer, size C.int64_t, access C.int, out *C.weft_region,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	return registered(n, name, access, out, e, func(*xferAgent) (xfer.Storage, error) {
		if p == nil || size <= 0 {
			return nil, fmt.Errorf("%d bytes at %p: %w", size, p, xfer.ErrBounds)
		}
		return xfer.Memory(unsafe.Slice((*byte)(p), size)), nil
	})
}

//export goXferRegisterFile
func goXferRegisterFile(n C.weft_xfer_agent, name, file *C.char, size C.int64_t, access C.int, out *C.weft_region,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	return registered(n, name, access, out, e, func(*xferAgent) (xfer.Storage, error) {
		return xfer.OpenFile(text(file), xfer.FileOptions{Size: int64(size), Create: access != C.WEFT_XFER_MAY_READ,
			ReadOnly: access == C.WEFT_XFER_MAY_READ})
	})
}

//export goXferRegisterObject
func goXferRegisterObject(n C.weft_xfer_agent, name, place, key *C.char, size C.int64_t, access C.int, out *C.weft_region,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	return registered(n, name, access, out, e, func(a *xferAgent) (xfer.Storage, error) {
		p, err := blob.Open(text(place))
		if err != nil {
			return nil, err
		}
		a.stores.Store(p, nil)
		return xfer.NewObject(p, text(key), int64(size), xfer.ObjectOptions{})
	})
}

// xferGPUs are the GPUs that regions are on. Each is opened once, so that copies between two regions of one are its own.
var xferGPUs struct {
	sync.Mutex
	open map[int]gpu.Device
}

func xferGPU(ordinal int) (gpu.Device, error) {
	xferGPUs.Lock()
	defer xferGPUs.Unlock()
	if d := xferGPUs.open[ordinal]; d != nil {
		return d, nil
	}
	d, err := cuda.Open(ordinal)
	if err != nil {
		return nil, err
	}
	if xferGPUs.open == nil {
		xferGPUs.open = map[int]gpu.Device{}
	}
	xferGPUs.open[ordinal] = d
	return d, nil
}

//export goXferRegisterGPU
func goXferRegisterGPU(n C.weft_xfer_agent, name *C.char, ordinal C.int, at C.uint64_t, size C.int64_t, access C.int, out *C.weft_region,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	return registered(n, name, access, out, e, func(*xferAgent) (xfer.Storage, error) {
		d, err := xferGPU(int(ordinal))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errDevice, err)
		}
		return xfer.NewDevice(d, gpu.Ptr(at), int64(size))
	})
}

// own is a region of an agent of this process.
func own(n C.weft_region) (*xfer.Region, error) {
	r, err := xferRegions.get(n)
	if err == nil && r.own == nil {
		err = fmt.Errorf("region %q is a peer's", r.far.Name)
	}
	if err != nil {
		return nil, err
	}
	return r.own, nil
}

//export goXferReclaim
func goXferReclaim(n C.weft_region, off, size, ms C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := own(n)
	if err != nil {
		return fill(e, err)
	}
	if off < 0 || size < 0 || int64(off) > r.Size()-int64(size) {
		return fill(e, fmt.Errorf("region %q: %w: %d bytes at %d of %d", r.Name(), xfer.ErrBounds, size, off, r.Size()))
	}
	_, err = during(int64(ms), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.Reclaim(ctx, int64(off), int64(size))
	})
	return fill(e, err)
}

//export goXferPublish
func goXferPublish(n C.weft_region, off, size C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := own(n)
	if err != nil {
		return fill(e, err)
	}
	return fill(e, r.Publish(int64(off), int64(size)))
}

//export goXferRelease
func goXferRelease(n C.weft_region, ms C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := own(n)
	if err != nil {
		return fill(e, err)
	}
	if _, err = during(int64(ms), func(ctx context.Context) (struct{}, error) { return struct{}{}, r.Release(ctx) }); err == nil {
		_, _ = xferRegions.take(n)
	}
	return fill(e, err)
}

//export goXferDescribe
func goXferDescribe(n C.weft_xfer_agent, to *C.char, room C.int64_t, need *C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	a, err := xferAgents.get(n)
	if err != nil {
		return fill(e, err)
	}
	b := a.Describe()
	if need != nil {
		*need = C.int64_t(len(b) + 1)
	}
	if to != nil && room > 0 {
		putText(unsafe.Slice((*byte)(unsafe.Pointer(to)), room), string(b))
	}
	return fill(e, nil)
}

// opened gives a peer a number.
func opened(a *xferAgent, p *xfer.Peer, err error, out *C.weft_xfer_peer, e *C.weft_error) C.int {
	*out = 0
	if err == nil {
		*out = xferPeers.add(&xferPeer{p, a})
	}
	return fill(e, err)
}

//export goXferPeerOpen
func goXferPeerOpen(n C.weft_xfer_agent, description *C.char, size C.int64_t, out *C.weft_xfer_peer, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	a, err := xferAgents.get(n)
	if err != nil {
		return opened(a, nil, err, out, e)
	}
	if description == nil || size < 0 || size > 1<<30 {
		return opened(a, nil, fmt.Errorf("a description of %d bytes", size), out, e)
	}
	p, err := a.Open([]byte(strings.TrimRight(C.GoStringN(description, C.int(size)), "\x00")))
	return opened(a, p, err, out, e)
}

//export goXferMeet
func goXferMeet(n C.weft_xfer_agent, name, address *C.char, ms C.int64_t, out *C.weft_xfer_peer, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	a, err := xferAgents.get(n)
	if err != nil {
		return opened(a, nil, err, out, e)
	}
	who, at := text(name), text(address)
	p, err := during(int64(ms), func(ctx context.Context) (*xfer.Peer, error) { return a.Meet(ctx, who, at) })
	return opened(a, p, err, out, e)
}

//export goXferForget
func goXferForget(n C.weft_xfer_peer, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	p, err := xferPeers.take(n)
	if err == nil {
		p.agent.Forget(p.Peer)
	}
	return fill(e, err)
}

//export goXferRegion
func goXferRegion(n C.weft_xfer_peer, name *C.char, out *C.weft_region, size *C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	p, err := xferPeers.get(n)
	if err != nil {
		return fill(e, err)
	}
	r, err := p.Region(text(name))
	if err != nil {
		return fill(e, err)
	}
	if size != nil {
		*size = C.int64_t(r.Size)
	}
	*out = xferRegions.add(&xferRegion{far: r, peer: p.Peer})
	return fill(e, nil)
}

//export goXferPrepare
func goXferPrepare(n C.weft_xfer_agent, of C.weft_xfer_peer, from *C.weft_xfer_desc, count C.int64_t, out *C.weft_xfer_list,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	a, err := xferAgents.get(n)
	if err != nil {
		return fill(e, err)
	}
	var peer *xfer.Peer
	if of != 0 {
		p, err := xferPeers.get(of)
		if err != nil {
			return fill(e, err)
		}
		peer = p.Peer
	}
	if from == nil || count < 0 || count > 1<<30 {
		return fill(e, fmt.Errorf("%d descriptors: %w", count, xfer.ErrLimit))
	}
	descs := make([]xfer.Desc, count)
	var number C.weft_region
	var last *xferRegion
	for i, d := range unsafe.Slice(from, count) {
		if last == nil || d.region != number {
			if last, err = xferRegions.get(d.region); err != nil {
				return fill(e, fmt.Errorf("descriptor %d: %w: %w", i, xfer.ErrRegion, err))
			}
			if number = d.region; last.peer != peer {
				return fill(e, fmt.Errorf("descriptor %d: %w: the region belongs to another agent than the list", i, xfer.ErrRegion))
			}
		}
		if last.own != nil {
			descs[i] = last.own.At(int64(d.offset), int64(d.bytes))
		} else {
			descs[i] = last.far.At(int64(d.offset), int64(d.bytes))
		}
	}
	l, err := a.Prepare(peer, descs)
	if err != nil {
		return fill(e, err)
	}
	*out = xferLists.add(l)
	return fill(e, nil)
}

//export goXferUnprepare
func goXferUnprepare(n C.weft_xfer_list, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	l, err := xferLists.take(n)
	if err == nil {
		l.Release()
	}
	return fill(e, err)
}

// indices are those that C chose of a list; nil for all.
func indices(p *C.int64_t, n C.int64_t) ([]int, error) {
	if p == nil {
		return nil, nil
	}
	if n < 0 || n > 1<<30 {
		return nil, fmt.Errorf("%d indices: %w", n, xfer.ErrLimit)
	}
	out := make([]int, n)
	for i, x := range unsafe.Slice(p, n) {
		out[i] = int(x)
	}
	return out, nil
}

//export goXferPost
func goXferPost(n C.weft_xfer_agent, from *C.weft_xfer_move, out *C.weft_xfer_request, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	a, err := xferAgents.get(n)
	if err != nil {
		return fill(e, err)
	}
	var size C.uint64_t
	if from != nil {
		size = from.size
	}
	m, err := sized("weft_xfer_move", from, size)
	if err != nil {
		return fill(e, err)
	}
	if m.op < 0 || m.op > 1 || m.urgency < 0 || m.urgency > 2 || m.notice_bytes < 0 || m.notice_bytes > 1<<30 {
		return fill(e, fmt.Errorf("weft_xfer_move: op %d, urgency %d, notice of %d bytes", m.op, m.urgency, m.notice_bytes))
	}
	t := xfer.Transfer{Op: xfer.Op(m.op), Class: xfer.Class(m.urgency), Timeout: milliseconds(m.timeout_ms), Path: text(m.path)}
	if t.Local, err = xferLists.get(m.local); err != nil {
		return fill(e, fmt.Errorf("weft_xfer_move.local: %w", err))
	}
	if t.Remote, err = xferLists.get(m.remote); err != nil {
		return fill(e, fmt.Errorf("weft_xfer_move.remote: %w", err))
	}
	if t.LocalIndex, err = indices(m.local_index, m.count); err != nil {
		return fill(e, err)
	}
	if t.RemoteIndex, err = indices(m.remote_index, m.count); err != nil {
		return fill(e, err)
	}
	if m.notice != nil {
		t.Notice = C.GoBytes(m.notice, C.int(m.notice_bytes))
	}
	r, err := a.Post(t)
	if err != nil {
		return fill(e, err)
	}
	*out = xferRequests.add(r)
	return fill(e, nil)
}

//export goXferWait
func goXferWait(n C.weft_xfer_request, ms C.int64_t, to *C.weft_xfer_status, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := xferRequests.get(n)
	if err != nil {
		return fill(e, err)
	}
	if ms != 0 && !r.Poll().State.Over() {
		_, err = during(int64(max(ms, 0)), func(ctx context.Context) (struct{}, error) {
			select {
			case <-r.Done():
			case <-ctx.Done():
				return struct{}{}, ctx.Err()
			}
			return struct{}{}, nil
		})
		if errors.Is(err, errInterrupted) {
			return fill(e, err)
		}
	}
	s := r.Poll()
	if to != nil {
		if err := putStatus(to, s); err != nil {
			return fill(e, err)
		}
	}
	if !s.State.Over() {
		_ = fill(e, nil)
		return C.WEFT_PENDING
	}
	return fill(e, s.Err)
}

// putStatus fills what the caller knows of a status.
func putStatus(to *C.weft_xfer_status, s xfer.Status) error {
	known := C.uint64_t(unsafe.Sizeof(*to))
	if to.size < known {
		return fmt.Errorf("weft_xfer_status.size is %d; set it to sizeof(weft_xfer_status), which is %d here", to.size, known)
	}
	*to = C.weft_xfer_status{size: to.size, state: C.int32_t(s.State), landed: C.int64_t(s.Landed), total: C.int64_t(s.Total)}
	putText(unsafe.Slice((*byte)(unsafe.Pointer(&to.path[0])), len(to.path)), s.Path)
	if f := (*xfer.Failure)(nil); errors.As(s.Err, &f) {
		putText(unsafe.Slice((*byte)(unsafe.Pointer(&to.culprit[0])), len(to.culprit)), f.Who)
	}
	return nil
}

//export goXferCancel
func goXferCancel(n C.weft_xfer_request, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := xferRequests.get(n)
	if err != nil {
		return fill(e, err)
	}
	_, err = during(0, func(ctx context.Context) (struct{}, error) { return struct{}{}, r.Cancel(ctx) })
	return fill(e, err)
}

//export goXferFree
func goXferFree(n C.weft_xfer_request, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := xferRequests.take(n)
	if err == nil && !r.Poll().State.Over() {
		_, err = during(0, func(ctx context.Context) (struct{}, error) { return struct{}{}, r.Cancel(ctx) })
	}
	return fill(e, err)
}

//export goXferNotify
func goXferNotify(n C.weft_xfer_agent, to C.weft_xfer_peer, data unsafe.Pointer, size C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	a, err := xferAgents.get(n)
	if err != nil {
		return fill(e, err)
	}
	p, err := xferPeers.get(to)
	if err != nil {
		return fill(e, err)
	}
	if size < 0 || size > 1<<30 || data == nil && size > 0 {
		return fill(e, fmt.Errorf("notice of %d bytes at %p: %w", size, data, xfer.ErrLimit))
	}
	b := C.GoBytes(data, C.int(size))
	_, err = during(0, func(ctx context.Context) (struct{}, error) { return struct{}{}, a.Notify(ctx, p.Peer, b) })
	return fill(e, err)
}

//export goXferNotice
func goXferNotice(n C.weft_xfer_agent, ms C.int64_t, from *C.char, to unsafe.Pointer, room C.int64_t, need *C.int64_t,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	a, err := xferAgents.get(n)
	if err != nil {
		return fill(e, err)
	}
	x, err := a.nextNotice(int64(ms))
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) && !errors.Is(err, errInterrupted) {
			_ = fill(e, nil)
			return C.WEFT_PENDING
		}
		return fill(e, err)
	}
	if from != nil {
		putText(unsafe.Slice((*byte)(unsafe.Pointer(from)), 208), x.From.Name)
	}
	if need != nil {
		*need = C.int64_t(len(x.Data))
	}
	if room = max(room, 0); to == nil {
		room = 0
	}
	if int64(len(x.Data)) > int64(room) {
		a.mu.Lock()
		a.late = append(a.late, x)
		a.mu.Unlock()
		return fill(e, fmt.Errorf("a notice of %d bytes: %w: the buffer holds %d; the notice stays, so ask again with a larger one",
			len(x.Data), xfer.ErrLimit, room))
	}
	copy(unsafe.Slice((*byte)(to), room), x.Data)
	return fill(e, x.Err)
}

// nextNotice gives the next notice, first of those that a caller had no room for. It waits for some milliseconds, below 0 for ever.
func (a *xferAgent) nextNotice(ms int64) (xfer.Notice, error) {
	a.mu.Lock()
	if len(a.late) > 0 {
		defer a.mu.Unlock()
		x := a.late[0]
		a.late = a.late[1:]
		return x, nil
	}
	a.mu.Unlock()
	x, err := a.NextNotice(expired)
	if err == nil || ms == 0 || errors.Is(err, xfer.ErrClosed) {
		return x, err
	}
	return during(max(ms, 0), func(ctx context.Context) (xfer.Notice, error) { return a.NextNotice(ctx) })
}
