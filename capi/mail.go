//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/device"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/cuda"
	"github.com/weft-fabric/weft/run/reduce"
)

// mail is the messages of a communicator between memory of GPUs. They pass through the host, and need no other rank's GPU.
//
// Messages between two ranks do not overtake one another. A receive is posted when it is called, into memory of the host. A
// message that is sent waits for its stream and its copy to the host, and then for its turn behind those that were sent before it.
type mail struct {
	mu      sync.Mutex
	stages  map[int]*device.Stage  // by the number of the GPU
	last    map[turn]chan struct{} // closed when the latest message of its kind has been posted
	letters sync.WaitGroup
}

// turn is a kind of messages that keep their order.
type turn struct {
	op   C.int32_t
	peer C.int32_t
}

// letter is a message of a GPU's memory under way.
type letter struct {
	done chan struct{}
	err  error
}

func (l *letter) Done() <-chan struct{} { return l.done }

func (l *letter) Wait(ctx context.Context) error {
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// mailOf is the mail of a communicator.
func mailOf(c *comm.Comm) *mail {
	v, _ := groups.LoadOrStore(c, &gpus{})
	return &v.(*gpus).mail
}

// stage opens this rank's GPU for messages, or gives the one that is open.
func (m *mail) stage(ordinal int) (*device.Stage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.stages[ordinal]; s != nil {
		return s, nil
	}
	d, err := cuda.Open(ordinal)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDevice, err)
	}
	s, err := device.NewStage(d)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDevice, err)
	}
	if m.stages == nil {
		m.stages, m.last = map[int]*device.Stage{}, map[turn]chan struct{}{}
	}
	m.stages[ordinal] = s
	return s, nil
}

// queue takes a place behind the messages of the same kind: before is closed when it is this one's turn, which ends with posted.
func (m *mail) queue(t turn) (before <-chan struct{}, posted func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before = m.last[t]
	mine := make(chan struct{})
	m.last[t] = mine
	return before, sync.OnceFunc(func() { close(mine) })
}

// close closes the GPUs once no message is under way. The communicator has been closed, which ends them.
func (m *mail) close() error {
	m.letters.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, s := range m.stages {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// mail starts a message of a GPU's memory, behind what its stream holds now.
func (k *call) mail(ctx context.Context, c *comm.Comm, status *comm.Status) (*letter, error) {
	m := mailOf(c)
	s, err := m.stage(int(k.a.device_id))
	if err != nil {
		return nil, err
	}
	after, err := s.After(gpu.Stream(uintptr(k.a.stream)))
	if err != nil {
		return nil, err
	}
	p := &post{k: k, c: c, s: s, status: status, after: after}
	p.before, p.posted = m.queue(turn{k.a.op, k.a.peer})
	var do func(context.Context) error
	if k.tagged() && k.a.op == C.WEFT_RECV {
		do, err = p.receiveNow(ctx)
		p.posted()
		if err != nil {
			return nil, err
		}
	} else {
		do = p.deliver
	}
	l := &letter{done: make(chan struct{})}
	m.letters.Go(func() {
		defer close(l.done)
		defer p.posted()
		l.err = do(ctx)
	})
	return l, nil
}

// post is the way of a message over the host.
type post struct {
	k      *call
	c      *comm.Comm
	s      *device.Stage
	status *comm.Status
	after  func(context.Context) error
	before <-chan struct{}
	posted func()
}

// receiveNow posts a receive. What it gives waits for the message and leaves it in the GPU's memory.
func (p *post) receiveNow(ctx context.Context) (func(context.Context) error, error) {
	return p.s.Receive(p.memory(p.k.a.dst, p.k.n), p.after, func(b []byte) func() (int, error) {
		host := p.host(nil, b)
		h := host.later(ctx, p.c, p.status)
		return func() (int, error) {
			err := h.Wait(context.Background()) // it ends with ctx
			return p.status.Count * p.k.kind.size, err
		}
	})
}

// deliver sends, or sends and receives, or receives what has no tag.
func (p *post) deliver(ctx context.Context) error {
	if err := p.after(ctx); err != nil {
		return err
	}
	switch p.k.a.op {
	case C.WEFT_SEND:
		return p.s.Out(ctx, p.memory(unsafe.Pointer(p.k.a.src), p.k.n), func(b []byte) error { return p.send(ctx, b) })
	case C.WEFT_RECV:
		return p.receive(ctx, nil)
	}
	return p.s.Out(ctx, p.memory(unsafe.Pointer(p.k.a.src), p.k.m), func(b []byte) error { return p.receive(ctx, b) })
}

// send posts what has come to the host, in its turn, and waits until it is sent.
func (p *post) send(ctx context.Context, b []byte) error {
	if err := p.await(ctx); err != nil {
		return err
	}
	host := p.host(b, nil)
	if !p.k.tagged() {
		_, err := host.now(ctx, p.c)
		return err
	}
	h := host.later(ctx, p.c, p.status)
	p.posted()
	return h.Wait(context.Background()) // it ends with ctx
}

// receive makes a call that receives, in its turn, and sends src if there is one.
func (p *post) receive(ctx context.Context, src []byte) error {
	return p.s.In(ctx, p.memory(p.k.a.dst, p.k.n), func(b []byte) (n int, err error) {
		if err := p.await(ctx); err != nil {
			return 0, err
		}
		host := p.host(src, b)
		*p.status, err = host.now(ctx, p.c)
		if p.k.a.op == C.WEFT_SEND_RECV { // without a tag: all came
			return p.k.n * p.k.kind.size, err
		}
		return p.status.Count * p.k.kind.size, err
	})
}

// await waits for the message's turn.
func (p *post) await(ctx context.Context) error {
	if p.before == nil {
		return nil
	}
	select {
	case <-p.before:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// memory is n elements of a GPU, as bytes.
func (p *post) memory(at unsafe.Pointer, n int) device.Memory {
	return device.Memory{At: gpu.Ptr(uintptr(at)), Type: reduce.Uint8, Count: n * p.k.kind.size}
}

// host is the call with memory of the host that stands for the GPU's.
func (p *post) host(src, dst []byte) *call {
	host := *p.k
	host.a.device = 0
	if src != nil {
		host.a.src = unsafe.Pointer(unsafe.SliceData(src))
	}
	if dst != nil {
		host.a.dst = unsafe.Pointer(unsafe.SliceData(dst))
	}
	return &host
}
