package device

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
	"github.com/weft-fabric/weft/run/reduce"
)

// Sums is where the staged way sums.
type Sums string

// Where it may: AnySums is where it is faster.
const (
	AnySums Sums = "auto"
	OnHost  Sums = "host"
	OnGPU   Sums = "gpu"
)

func (s Sums) check() error {
	switch s {
	case "", AnySums, OnHost, OnGPU:
		return nil
	}
	return fmt.Errorf("sums %q are none of %s, %s, %s", string(s), AnySums, OnHost, OnGPU)
}

// pinned is memory of the host that the ranks of one host and their GPUs share. GPUs that cannot see one another's memory sum there what
// the program's flat form gives their ranks to sum, by the kernels of the direct way:
//
//	copied out   piece 2   piece 3
//	summed       piece 1   piece 2       at the same time
//	copied back  piece 0   piece 1
//
// A rank's own input is read, and its own output written, on its GPU: only what is another rank's passes through the host. Ranks
// meet once for each piece. No GPU waits for another, so a rank that dies leaves none waiting.
type pinned struct {
	pages [][]byte  // by rank
	seen  []gpu.Ptr // where this rank's GPU sees them
	fd    int       // of the own one
	room  int       // bytes of a piece of the input, and of the output
	queue gpu.Queue // sums
}

const (
	pinnedSlots = 3
	sumsFrom    = 1 << 20 // bytes from which GPUs sum: less takes longer to meet for than to sum
)

func (p *pinned) in(rank, piece int) gpu.Ptr {
	return p.seen[rank] + gpu.Ptr(piece%pinnedSlots*2*p.room)
}

func (p *pinned) out(rank, piece int) gpu.Ptr { return p.in(rank, piece) + gpu.Ptr(p.room) }

// own is the memory of a rank's piece of the input, or of the output, as its host sees it.
func (p *pinned) own(rank, piece int, out bool) []byte {
	at := piece % pinnedSlots * 2 * p.room
	if out {
		at += p.room
	}
	return p.pages[rank][at:][:p.room]
}

func (p *pinned) close(g *Group) error {
	if p == nil {
		return nil
	}
	var errs []error
	if p.queue != nil {
		errs = append(errs, p.queue.Close())
	}
	return errors.Join(append(errs, p.unmap(g.dev))...)
}

// choose decides where sums are computed: by trying both on all ranks, or as it was demanded. It says why.
func (s *staged) choose(ctx context.Context, cards []card) (string, error) {
	g := s.g
	if g.cfg.Sums == OnHost {
		return "sums on the host, as was demanded (WEFT_CUDA_SUMS)", nil
	}
	if r := slices.IndexFunc(cards, func(c card) bool { return c.Host != cards[0].Host }); r >= 0 {
		return fmt.Sprintf("sums on the host: rank %d is on another one", r), nil
	}
	if g.Size() > ptx.Most {
		return fmt.Sprintf("sums on the host: %d ranks, and kernels take %d", g.Size(), ptx.Most), nil
	}
	p, why, err := newPinned(ctx, g)
	if err != nil {
		return "", err
	}
	if why == "" {
		s.pinned = p
		if g.cfg.Sums == OnGPU {
			return "sums on the GPUs, as was demanded (WEFT_CUDA_SUMS)", nil
		}
		var text string
		if text, why, err = s.compare(ctx); err != nil || why == "" {
			return text, err
		}
		s.pinned = nil
		if err := p.close(g); err != nil {
			return "", err
		}
	}
	if g.cfg.Sums == OnGPU {
		return "", fmt.Errorf("sums on the GPUs were demanded (WEFT_CUDA_SUMS): %s", why)
	}
	return "sums on the host: " + why, nil
}

// compare tries a small sum and a larger one on the GPUs and on the host. It says how long they took, or why sums stay on the host.
func (s *staged) compare(ctx context.Context) (took, why string, err error) {
	const slow = 5 * time.Millisecond // for a small one
	bytes := min(64<<10, s.g.cfg.Piece)
	onGPU, onHost, right, err := s.race(ctx, bytes)
	if err == nil && right && onGPU > slow {
		return "", fmt.Sprintf("GPUs take %.1f ms for %v", onGPU.Seconds()*1e3, unit.Bytes(bytes)), nil
	}
	if err == nil && right {
		bytes = 4 * s.g.cfg.Piece
		onGPU, onHost, right, err = s.race(ctx, bytes)
	}
	text := fmt.Sprintf("%v take %.2f ms on the GPUs, %.2f ms on the host", unit.Bytes(bytes), onGPU.Seconds()*1e3, onHost.Seconds()*1e3)
	switch {
	case err != nil:
		return "", "", err
	case !right:
		return "", "GPUs do not sum memory of the host", nil
	case onGPU > onHost:
		return "", text, nil
	}
	return fmt.Sprintf("sums of %v and more on the GPUs: %s", unit.Bytes(sumsFrom), text), "", nil
}

// race sums bytes of float32 in both places: how long the slowest rank took, and whether the GPUs' sums are right.
func (s *staged) race(ctx context.Context, bytes int) (onGPU, onHost time.Duration, right bool, err error) {
	g := s.g
	src, err := g.Alloc(reduce.Float32, bytes/4)
	if err != nil {
		return 0, 0, false, g.give(err)
	}
	dst, err := g.Alloc(reduce.Float32, bytes/4)
	if err != nil {
		return 0, 0, false, g.give(errors.Join(err, g.Free(src)))
	}
	defer func() { err = errors.Join(err, g.Free(src), g.Free(dst)) }()
	c := &Call{Op: sched.AllReduce, Reduce: reduce.Sum, Src: src, Dst: dst}
	plan, err := g.plan(c)
	if err != nil {
		return 0, 0, false, g.give(err)
	}
	list := pieces(src.Count, 1, 4, g.cfg.Piece)
	page := s.pinned.own(g.Rank(), 0, true)
	number := func(i, rank int) float32 { return float32(i%1000 + 3*rank) }
	each := func(q gpu.Queue, do func(x piece, b []byte) error) error {
		for _, x := range list {
			if err := do(x, page[:4*(x.to-x.from)]); err != nil {
				return err
			}
			if err := g.wait(ctx, q); err != nil {
				return err
			}
		}
		return nil
	}
	if err := each(g.backQ, func(x piece, b []byte) error {
		for i := x.from; i < x.to; i++ {
			binary.LittleEndian.PutUint32(b[4*(i-x.from):], math.Float32bits(number(i, g.Rank())))
		}
		return g.backQ.In(src.At+gpu.Ptr(4*x.from), b)
	}); err != nil {
		return 0, 0, false, g.give(err)
	}
	times := []float64{math.Inf(1), math.Inf(1), 0} // on the GPUs, on the host, whether a sum was wrong
	for range 3 {
		for i, way := range []func() error{
			func() error { return s.sum(ctx, c, plan, list) },
			func() error { return s.flow(ctx, c, list, []comm.Option{comm.Using(plan.program)}) },
		} {
			if err := comm.Barrier(ctx, g.c); err != nil {
				return 0, 0, false, err
			}
			began := time.Now()
			if err := way(); err != nil {
				return 0, 0, false, g.give(err)
			}
			times[i] = min(times[i], time.Since(began).Seconds())
			if i > 0 {
				continue
			}
			if err := each(g.gpuQ, func(x piece, b []byte) error { return g.gpuQ.Out(b, dst.At+gpu.Ptr(4*x.from)) }); err != nil {
				return 0, 0, false, g.give(err)
			}
			last := list[len(list)-1]
			for i := last.from; i < last.to; i++ {
				want := float32(0)
				for r := range g.Size() {
					want += number(i, r)
				}
				if math.Float32frombits(binary.LittleEndian.Uint32(page[4*(i-last.from):])) != want {
					times[2] = 1
				}
			}
		}
	}
	if err := comm.AllReduce(ctx, g.c, times, comm.Max); err != nil {
		return 0, 0, false, err
	}
	d := func(s float64) time.Duration { return time.Duration(s * 1e9) }
	return d(times[0]), d(times[1]), times[2] == 0, nil
}

// sumsOnGPU reports whether GPUs sum in a call.
func (s *staged) sumsOnGPU(c *Call, p *planned) bool {
	if s.pinned == nil || !reduces(c.Op) || c.Reduce == reduce.PreMulSum || c.Counts != nil || p.form == nil {
		return false
	}
	for i := range p.form.Size() {
		if len(p.form.Rank(i).Moves) > 0 { // copies between pinned memory are no GPU's work
			return false
		}
	}
	blocks := 1
	if c.Op.Blocks() {
		blocks = s.g.Size()
	}
	return s.g.cfg.Sums == OnGPU || c.count(s.g.Size())*blocks*c.Dst.Type.Size() >= sumsFrom
}

// share is a rank's part in the sums of a piece: its passes, and the stretches of the input and output that pass through the host.
type share struct {
	passes    []pass
	out, back []part
}

// shareOf finds the part of this rank in a piece of n elements. Only blocks that follow one another in the GPU's memory as they do in
// a piece are used there.
func (s *staged) shareOf(c *Call, p *planned, n int) share {
	g, size := s.g, c.Dst.Type.Size()
	x := share{passes: passesOf(p.program, p.form, chunks.New(p.program, size, n, nil), g.Rank(), g.Rank()+1)}
	var ins, outs []part
	for _, y := range x.passes {
		for _, at := range y.srcs {
			if at.rank == g.Rank() && !c.larger(true) {
				ins = append(ins, part{at: at.at / size, elements: y.bytes / size})
			}
		}
		for _, at := range y.dsts {
			if at.rank == g.Rank() {
				outs = append(outs, part{at: at.at / size, elements: y.bytes / size})
			}
		}
	}
	if !c.larger(true) {
		x.out = without(n, ins)
	}
	if c.Dst.Count > 0 {
		x.back = without(n, outs)
	}
	return x
}

// without is what is left of n elements without some parts.
func without(n int, parts []part) []part {
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.at, b.at) })
	var left []part
	at := 0
	for _, p := range append(parts, part{at: n}) {
		if p.at > at {
			left = append(left, part{at, at, p.at - at})
		}
		at = max(at, p.at+p.elements)
	}
	return left
}

// sum carries out a reduction by the GPUs. Before ranks meet for piece k, it has been copied out, piece k-1 has been summed, and piece
// k-3, whose memory it takes, has been copied back.
func (s *staged) sum(ctx context.Context, c *Call, p *planned, list []piece) error {
	g := s.g
	shares := map[int]share{}
	of := func(k int) share {
		n := list[k].to - list[k].from
		x, known := shares[n]
		if !known {
			x = s.shareOf(c, p, n)
			shares[n] = x
		}
		return x
	}
	var copied, summed uint64
	back := make([]uint64, len(list))
	reached := func(q gpu.Queue, mark uint64) error {
		return g.until(ctx, func() (bool, error) { return q.Reached(mark) })
	}
	var err error
	for k := range len(list) + 1 {
		if k == 0 {
			if copied, err = s.copyOut(c, of(0), list[0], 0); err != nil {
				return err
			}
		}
		if k < len(list) {
			err = reached(g.gpuQ, copied)
		}
		if err == nil && k > 0 {
			err = reached(s.pinned.queue, summed)
		}
		if err == nil && k >= pinnedSlots {
			err = reached(g.backQ, back[k-pinnedSlots])
		}
		if err != nil {
			return err
		}
		if err := comm.Barrier(ctx, g.c); err != nil {
			return err
		}
		if k < len(list) {
			if summed, err = s.sumPiece(c, of(k), list[k], k); err != nil {
				return err
			}
		}
		if k > 0 {
			if back[k-1], err = s.copyBack(c, of(k-1), list[k-1], k-1); err != nil {
				return err
			}
		}
		if k+1 < len(list) {
			if copied, err = s.copyOut(c, of(k+1), list[k+1], k+1); err != nil {
				return err
			}
		}
	}
	return g.wait(ctx, g.backQ)
}

// copyOut queues copies of a piece's input to the host.
func (s *staged) copyOut(c *Call, x share, p piece, k int) (uint64, error) {
	size, to := c.Dst.Type.Size(), s.pinned.own(s.g.Rank(), k, false)
	list, from := x.out, p.from
	if c.larger(true) {
		list, from = s.parts(c, p, c.Src, true), 0
	}
	for _, y := range list {
		if err := s.g.gpuQ.Out(to[y.in*size:][:y.elements*size], c.Src.At+gpu.Ptr((from+y.at)*size)); err != nil {
			return 0, err
		}
	}
	return s.g.gpuQ.Mark()
}

// sumPiece queues the kernels of a piece.
func (s *staged) sumPiece(c *Call, x share, p piece, k int) (uint64, error) {
	me, from := s.g.Rank(), gpu.Ptr(p.from*c.Dst.Type.Size())
	for _, y := range x.passes {
		r := &gpu.Reduction{Type: c.Dst.Type, Op: c.Reduce, Order: y.order, Bytes: y.bytes, Factor: float64(s.g.Size())}
		for _, at := range y.srcs {
			base := s.pinned.in(at.rank, k)
			if at.rank == me && !c.larger(true) {
				base = c.Src.At + from
			}
			r.Srcs = append(r.Srcs, base+gpu.Ptr(at.at))
		}
		for _, at := range y.dsts {
			base := s.pinned.out(at.rank, k)
			if at.rank == me {
				base = c.Dst.At + from
			}
			r.Dsts = append(r.Dsts, base+gpu.Ptr(at.at))
		}
		if err := s.pinned.queue.Reduce(r); err != nil {
			return 0, err
		}
	}
	return s.pinned.queue.Mark()
}

// copyBack queues copies of a piece's output to the GPU.
func (s *staged) copyBack(c *Call, x share, p piece, k int) (uint64, error) {
	size, from := c.Dst.Type.Size(), s.pinned.own(s.g.Rank(), k, true)
	for _, y := range x.back {
		if err := s.g.backQ.In(c.Dst.At+gpu.Ptr((p.from+y.at)*size), from[y.in*size:][:y.elements*size]); err != nil {
			return 0, err
		}
	}
	return s.g.backQ.Mark()
}
