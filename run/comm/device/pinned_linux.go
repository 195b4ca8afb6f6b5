package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
)

// newPinned makes the memory: each rank its own, which all others map and show to their GPUs. If one cannot, none has it; why says
// which and why, the same on all.
func newPinned(ctx context.Context, g *Group) (p *pinned, why string, err error) {
	const text = 256
	p = &pinned{fd: -1, room: (g.cfg.Piece+64*8*g.Size())&^4095 + 4096}
	own, all := make([]byte, text), make([]byte, text*g.Size())
	if p.fd, err = unix.MemfdCreate("weft-pinned", unix.MFD_CLOEXEC); err == nil {
		err = unix.Ftruncate(p.fd, int64(pinnedSlots*2*p.room))
		copy(own, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.fd))
	}
	failed := err
	if err := comm.AllGather(ctx, g.c, all, own); err != nil {
		return nil, "", errors.Join(err, p.unmap(g.dev))
	}
	for r := 0; r < g.Size() && failed == nil; r++ {
		if failed = p.open(g, string(bytes.TrimRight(all[r*text:][:text], "\x00"))); failed != nil {
			failed = fmt.Errorf("rank %d cannot share memory of rank %d: %w", g.Rank(), r, failed)
		}
	}
	if failed == nil {
		p.queue, failed = g.dev.Queue()
	}
	if failed == nil {
		for _, t := range []reduce.Type{reduce.Float32, reduce.BFloat16, reduce.Float16} {
			_ = g.dev.Prepare(t, reduce.Sum, reduce.Tree(g.Size())) // what gradients need; an error is told by the call that does
		}
	}
	clear(own)
	if failed != nil {
		copy(own, failed.Error())
	}
	if err := comm.AllGather(ctx, g.c, all, own); err != nil {
		return nil, "", errors.Join(err, p.close(g))
	}
	for r := range g.Size() {
		if said := string(bytes.TrimRight(all[r*text:][:text], "\x00")); said != "" {
			return nil, said, p.close(g)
		}
	}
	return p, "", nil
}

// open maps memory of a rank and shows it to the GPU.
func (p *pinned) open(g *Group, path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	page, err := unix.Mmap(fd, 0, pinnedSlots*2*p.room, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if err := g.dev.Register(page); err != nil {
		return errors.Join(err, unix.Munmap(page))
	}
	seen, err := g.dev.Seen(page)
	if err != nil {
		return errors.Join(err, g.dev.Unregister(page), unix.Munmap(page))
	}
	p.pages, p.seen = append(p.pages, page), append(p.seen, seen)
	return nil
}

func (p *pinned) unmap(dev gpu.Device) error {
	var errs []error
	for _, page := range p.pages {
		errs = append(errs, dev.Unregister(page), unix.Munmap(page))
	}
	if p.fd >= 0 {
		errs = append(errs, unix.Close(p.fd))
	}
	p.pages, p.fd = nil, -1
	return errors.Join(errs...)
}
