//go:build libweft

package main

// #include "weft.h"
// extern char **environ;
// static char **environment(void) { return environ; }
import "C"

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/release"
)

//export goVersion
func goVersion(to *C.char, n C.int) {
	putText(unsafe.Slice((*byte)(unsafe.Pointer(to)), n), release.This().Version)
}

//export goThreads
func goThreads(n C.int, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	if n < 0 {
		return fill(e, fmt.Errorf("%d threads: want 0 or more", n))
	}
	if n == 0 {
		n = C.int(runtime.NumCPU())
	}
	runtime.GOMAXPROCS(int(n))
	return fill(e, nil)
}

// environment is that of the process now: Go's own copy is as old as the library.
func environment() []string {
	var list []string
	for p := C.environment(); p != nil && *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		list = append(list, C.GoString(*p))
	}
	return list
}

// config makes the configuration of a rank.
func config(from *C.weft_config) (comm.Config, error) {
	environ := environment()
	var f C.weft_config
	if from != nil {
		known := uint64(unsafe.Sizeof(f))
		if from.size < 16 || from.size > 4096 {
			return comm.Config{}, fmt.Errorf("weft_config.size is %d; set it to sizeof(weft_config), which is %d here", from.size, known)
		}
		given := unsafe.Slice((*byte)(unsafe.Pointer(from)), from.size)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&f)), known), given)
		for _, b := range given[min(known, uint64(len(given))):] {
			if b != 0 {
				return comm.Config{}, fmt.Errorf("weft_config of %d bytes is newer than this library, which supports %d bytes", from.size, known)
			}
		}
	}
	for line := range strings.Lines(text(f.settings)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if !strings.HasPrefix(line, "WEFT_") || !strings.Contains(line, "=") {
			return comm.Config{}, fmt.Errorf("weft_config.settings: %q is not WEFT_NAME=value", line)
		}
		environ = append(environ, line) // the last one counts
	}
	set := func(name string, value *C.char) {
		if value != nil {
			environ = append(environ, name+"="+text(value))
		}
	}
	set("WEFT_TOKEN", f.token)
	set("WEFT_TRANSPORT", f.transport)
	if err := setWay(environ); err != nil {
		return comm.Config{}, err
	}
	if f.ranks == 0 {
		cfg, err := comm.FromEnviron(environ)
		if f.timeout_ms > 0 {
			cfg.Timeout = time.Duration(f.timeout_ms) * time.Millisecond
		}
		return cfg, err
	}
	cfg, err := comm.SettingsFromEnviron(environ)
	if err != nil {
		return cfg, err
	}
	cfg.Rank, cfg.Size, cfg.LocalRank, cfg.Addr = int(f.rank), int(f.ranks), int(f.local_rank), text(f.address)
	if f.listener != 0 {
		ln, err := listeners.get(f.listener)
		if err != nil {
			return cfg, err
		}
		cfg.Listener = *ln
	}
	if f.timeout_ms > 0 {
		cfg.Timeout = time.Duration(f.timeout_ms) * time.Millisecond
	}
	if cfg.Size > 1 {
		if _, _, err := net.SplitHostPort(cfg.Addr); err != nil {
			return cfg, fmt.Errorf("weft_config.address %q is not host:port, where rank 0 listens: %w", cfg.Addr, err)
		}
	}
	return cfg, nil
}

func text(p *C.char) string {
	if p == nil {
		return ""
	}
	return C.GoString(p)
}

//export goJoin
func goJoin(from *C.weft_config, out *C.weft_comm, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	cfg, err := config(from)
	if err != nil {
		return fill(e, err)
	}
	c, err := during(0, func(ctx context.Context) (*comm.Comm, error) { return comm.Join(ctx, cfg) })
	return made(c, err, out, e)
}

// made gives a communicator a number.
func made(c *comm.Comm, err error, out *C.weft_comm, e *C.weft_error) C.int {
	*out = 0
	if err == nil && c != nil {
		*out = comms.add(c)
	}
	return fill(e, err)
}

//export goClose
func goClose(n C.weft_comm, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.take(n)
	if err != nil {
		return fill(e, err)
	}
	_, err = during(0, func(context.Context) (struct{}, error) { return struct{}{}, closeWith(c, c.Close) })
	return fill(e, err)
}

//export goAbort
func goAbort(n C.weft_comm, why *C.char, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	var reason error
	if why != nil {
		reason = errors.New(text(why))
	}
	c.Abort(reason)
	return fill(e, nil)
}

//export goSplit
func goSplit(n C.weft_comm, color, key C.int, out *C.weft_comm, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	sub, err := during(0, func(ctx context.Context) (*comm.Comm, error) { return c.Split(ctx, int(color), int(key)) })
	return made(sub, err, out, e)
}

//export goDup
func goDup(n C.weft_comm, out *C.weft_comm, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	same, err := during(0, c.Dup)
	return made(same, err, out, e)
}

//export goShrink
func goShrink(n C.weft_comm, out *C.weft_comm, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	left, err := during(0, c.Shrink)
	if err == nil {
		_, _ = comms.take(n)
		err = closeWith(c, func() error { return nil })
	}
	return made(left, err, out, e)
}

//export goRank
func goRank(n C.weft_comm) C.int {
	c, err := comms.get(n)
	if err != nil {
		return -1
	}
	return C.int(c.Rank())
}

//export goSize
func goSize(n C.weft_comm) C.int {
	c, err := comms.get(n)
	if err != nil {
		return -1
	}
	return C.int(c.Size())
}

//export goInfo
func goInfo(n C.weft_comm, to *C.weft_info, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	full := C.weft_info{size: to.size, rank: C.int32_t(c.Rank()), ranks: C.int32_t(c.Size()), epoch: C.int32_t(c.Epoch())}
	putText(unsafe.Slice((*byte)(unsafe.Pointer(&full.transport[0])), len(full.transport)), c.Transport())
	if to.size < 16 || to.size > 4096 {
		return fill(e, fmt.Errorf("weft_info.size is %d; set it to sizeof(weft_info), which is %d here", to.size, unsafe.Sizeof(full)))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(to)), to.size), unsafe.Slice((*byte)(unsafe.Pointer(&full)), unsafe.Sizeof(full)))
	return fill(e, nil)
}

//export goCheck
func goCheck(n C.weft_comm, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err == nil {
		err = c.Err()
	}
	return fill(e, err)
}

//export goEnded
func goEnded(n C.weft_comm, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err == nil {
		err = c.Ended()
	}
	return fill(e, err)
}

//export goRun
func goRun(n C.weft_comm, from *C.weft_call, status *C.weft_status, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, k, err := asked(n, from)
	if err != nil {
		return fill(e, err)
	}
	p := patient(int64(k.a.timeout_ms))
	s, err := k.now(p, c)
	if err == nil {
		put(status, s)
	} else if p.gaveUp.Load() {
		err = fmt.Errorf("%w: %w", errInterrupted, err)
	}
	return fill(e, err)
}

// readAll reads calls that lie one behind the other. How far apart they are is the size that the first one states, which
// may be larger than what is known here.
func readAll(from *C.weft_call, count int, c *comm.Comm) (list []*call, err error) {
	for i := range count {
		at := (*C.weft_call)(unsafe.Add(unsafe.Pointer(from), i*int(from.size)))
		k, err := read(at, c)
		if err == nil && k.a.size != from.size {
			err = fmt.Errorf("weft_call.size is %d and that of the first is %d", k.a.size, from.size)
		}
		if err != nil {
			return nil, fmt.Errorf("call %d of %d: %w", i, count, err)
		}
		list = append(list, k)
	}
	return list, nil
}

//export goRunAll
func goRunAll(n C.weft_comm, from *C.weft_call, count C.int, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	if count <= 0 {
		return fill(e, fmt.Errorf("weft_run_all: %d calls", count))
	}
	list, err := readAll(from, int(count), c)
	if err != nil {
		return fill(e, err)
	}
	_, err = during(int64(list[0].a.timeout_ms), func(ctx context.Context) (struct{}, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var handles []pending
		var tickets []comm.Ticket
		var errs []error
		for i, k := range list {
			if k.a.op >= C.WEFT_PUT {
				tickets = append(tickets, k.post(c))
				continue
			}
			h, err := k.begin(ctx, c, new(comm.Status))
			if err != nil { // those that were begun end, too: the caller may use their memory when it is told
				err = fmt.Errorf("call %d of %d: %w", i, len(list), err)
				cancel(err)
				errs = append(errs, err)
				break
			}
			handles = append(handles, h)
		}
		for _, h := range handles {
			errs = append(errs, h.Wait(ctx))
			<-h.Done()
		}
		for _, t := range tickets {
			errs = append(errs, t.Wait(ctx))
		}
		return struct{}{}, errors.Join(errs...)
	})
	return fill(e, err)
}

//export goTryProbe
func goTryProbe(n C.weft_comm, from, tag C.int, status *C.weft_status, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	s, found, err := comm.TryProbe(c, int(from), int(tag))
	if err == nil && !found {
		return C.WEFT_PENDING
	}
	put(status, s)
	return fill(e, err)
}

// allocs are the pieces of memory that C holds, by address.
var allocs sync.Map // unsafe.Pointer to []byte

//export goAlloc
func goAlloc(n C.weft_comm, size C.int64_t, out *unsafe.Pointer, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = nil
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	if size <= 0 {
		return fill(e, fmt.Errorf("%d bytes of shared memory: want 1 or more", size))
	}
	b, err := comm.Alloc[byte](c, int(size))
	if err != nil {
		return fill(e, err)
	}
	*out = unsafe.Pointer(&b[0])
	allocs.Store(*out, b)
	return fill(e, nil)
}

//export goFree
func goFree(n C.weft_comm, p unsafe.Pointer, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	if p == nil {
		return fill(e, nil)
	}
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	b, ok := allocs.LoadAndDelete(p)
	if !ok {
		return fill(e, fmt.Errorf("%p was not got from weft_alloc, or was freed", p))
	}
	return fill(e, comm.Free(c, b.([]byte)))
}

//export goKeyOf
func goKeyOf(n C.weft_comm, p unsafe.Pointer, size C.int64_t, out *C.weft_key, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	if p == nil || size <= 0 {
		return fill(e, fmt.Errorf("key of %d bytes at %p: want memory from weft_alloc", size, p))
	}
	k, err := comm.KeyOf(c, unsafe.Slice((*byte)(p), size))
	*out = C.weft_key(k)
	return fill(e, err)
}

//export goNotices
func goNotices(n C.weft_comm, from *C.int32_t, values *C.uint32_t, room C.int, count *C.int, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*count = 0
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	if room < 0 {
		return fill(e, fmt.Errorf("weft_notices: a buffer for %d; want 0 or more", room))
	}
	list := make([]comm.Notice, room)
	k := c.TakeNotices(list)
	for i, x := range list[:k] {
		unsafe.Slice(from, room)[i], unsafe.Slice(values, room)[i] = C.int32_t(x.From), C.uint32_t(x.Value)
	}
	*count = C.int(k)
	return fill(e, nil)
}

//export goText
func goText(n C.weft_comm, what C.int, to *C.char, room C.int64_t, need *C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	var b bytes.Buffer
	switch what {
	case 0:
		err = c.Explain(&b)
	case 1:
		err = c.Flight().WriteJSON(&b)
	case 2:
		err = json.NewEncoder(&b).Encode(c.Counters())
	case 3:
		b.WriteString(wayOf(c))
	}
	if err != nil {
		return fill(e, err)
	}
	if need != nil {
		*need = C.int64_t(b.Len() + 1)
	}
	if to != nil && room > 0 {
		putText(unsafe.Slice((*byte)(unsafe.Pointer(to)), room), b.String())
	}
	return fill(e, nil)
}
