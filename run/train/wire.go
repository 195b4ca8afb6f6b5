package train

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/reduce"
)

// group is the ranks that share one dimension of a layout. Alone it has no
// communicator.
type group struct {
	c *comm.Comm
	// fault, where it is set, is asked before and after every call on the communicator; an
	// error is the call's.
	fault func(call string) error
}

func (g *group) size() int {
	if g.c == nil {
		return 1
	}
	return g.c.Size()
}

func (g *group) rank() int {
	if g.c == nil {
		return 0
	}
	return g.c.Rank()
}

// close gives back a communicator that was split off.
func (g *group) close() error {
	if g.c == nil {
		return nil
	}
	c := g.c
	g.c = nil
	return c.Close()
}

// call makes a call on the communicator.
func (g *group) call(name string, f func() error) error {
	if g.fault == nil {
		return f()
	}
	if err := g.fault(name); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return g.fault(name + " done")
}

func allReduce[T reduce.Element](ctx context.Context, g *group, buf []T) error {
	if g.size() == 1 || len(buf) == 0 {
		return nil
	}
	return g.call("all-reduce", func() error { return comm.AllReduce(ctx, g.c, buf, comm.Sum) })
}

// reduceScatter leaves in the own share of buf its sum over ranks.
func reduceScatter[T reduce.Element](ctx context.Context, g *group, buf []T) error {
	if g.size() == 1 || len(buf) == 0 {
		return nil
	}
	n := len(buf) / g.size()
	return g.call("reduce-scatter", func() error {
		return comm.ReduceScatter(ctx, g.c, buf[g.rank()*n:][:n], buf, comm.Sum)
	})
}

// barrier waits for all of a group.
func barrier(ctx context.Context, g *group) error {
	return g.call("barrier", func() error { return comm.Barrier(ctx, g.c) })
}

// allGather fills dst with every rank's src, which may be the own share of dst.
func allGather[T reduce.Element](ctx context.Context, g *group, dst, src []T) error {
	if g.size() == 1 {
		copy(dst, src)
		return nil
	}
	return g.call("all-gather", func() error { return comm.AllGather(ctx, g.c, dst, src) })
}

func broadcast[T reduce.Element](ctx context.Context, g *group, buf []T, root int) error {
	if g.size() == 1 {
		return nil
	}
	return g.call("broadcast", func() error { return comm.Broadcast(ctx, g.c, buf, root) })
}

// send and recv pass an activation on to another stage; an empty micro-batch has none.
func send(ctx context.Context, g *group, buf []float32, to int) error {
	if len(buf) == 0 {
		return nil
	}
	return g.call("send", func() error { return comm.Send(ctx, g.c, buf, to) })
}

func recv(ctx context.Context, g *group, buf []float32, from int) error {
	if len(buf) == 0 {
		return nil
	}
	return g.call("recv", func() error { return comm.Recv(ctx, g.c, buf, from) })
}

// halfScale keeps small gradients above the smallest float16 (6e-8) on the wire.
const halfScale = 1024

// narrow is working memory for gradients on the wire.
type narrow struct {
	half  []reduce.F16
	brain []reduce.BF16
}

// grow makes room for n elements of a type.
func (w *narrow) grow(t reduce.Type, n int) {
	switch {
	case t == reduce.Float16 && len(w.half) < n:
		w.half = make([]reduce.F16, n)
	case t == reduce.BFloat16 && len(w.brain) < n:
		w.brain = make([]reduce.BF16, n)
	}
}

func (w *narrow) bytes() int { return 2 * (len(w.half) + len(w.brain)) }

// sum adds gradients over the ranks of g as type t: all of buf (scatter false) or
// the own share of it.
func (w *narrow) sum(ctx context.Context, g *group, t reduce.Type, buf []float32, scatter bool) error {
	if g.size() == 1 || len(buf) == 0 {
		return nil
	}
	w.grow(t, len(buf))
	var err error
	own := buf
	n := len(buf) / g.size()
	if scatter {
		own = buf[g.rank()*n:][:n]
	}
	switch t {
	case reduce.Float32:
		if scatter {
			return reduceScatter(ctx, g, buf)
		}
		return allReduce(ctx, g, buf)
	case reduce.Float16:
		half := w.half[:len(buf)]
		for i, x := range buf {
			half[i] = reduce.ToF16(x * halfScale)
		}
		if scatter {
			err = reduceScatter(ctx, g, half)
			half = half[g.rank()*n:][:n]
		} else {
			err = allReduce(ctx, g, half)
		}
		if err == nil {
			for i, x := range half {
				own[i] = x.Float32() * (1.0 / halfScale)
			}
		}
	case reduce.BFloat16:
		brain := w.brain[:len(buf)]
		for i, x := range buf {
			brain[i] = reduce.ToBF16(x)
		}
		if scatter {
			err = reduceScatter(ctx, g, brain)
			brain = brain[g.rank()*n:][:n]
		} else {
			err = allReduce(ctx, g, brain)
		}
		if err == nil {
			for i, x := range brain {
				own[i] = x.Float32()
			}
		}
	default:
		err = fmt.Errorf("train: gradients as %v on the wire; known: %v", t, wires)
	}
	return err
}

// lane carries out jobs in the order they are given: on a goroutine of its own,
// beside its owner, or at once on the owner's.
type lane struct {
	beside bool
	meet   func() error // before each job, so that waiting for others is not taken for the job's time; nil: not
	jobs   chan *ticket
	ended  chan struct{}
	busy   time.Duration // of all jobs; read after end
	waited time.Duration // that the owner stood still for jobs
	err    error         // of the first job that failed; the others are not begun
}

// ticket is a job under way.
type ticket struct {
	lane *lane
	job  func() error
	done chan struct{}
	err  error
}

// newLane has enough room for jobs that the owner never waits to hand one over.
func newLane(beside bool, room int) *lane {
	l := &lane{beside: beside}
	if beside {
		l.jobs, l.ended = make(chan *ticket, room), make(chan struct{})
		go func() {
			defer close(l.ended)
			for t := range l.jobs {
				t.err = l.run(t.job)
				close(t.done)
			}
		}()
	}
	return l
}

func (l *lane) run(job func() error) error {
	if l.err != nil {
		return l.err
	}
	if l.meet != nil {
		if l.err = l.meet(); l.err != nil {
			return l.err
		}
	}
	began := time.Now()
	l.err = job()
	l.busy += time.Since(began)
	return l.err
}

// do hands over a job.
func (l *lane) do(job func() error) *ticket {
	t := &ticket{lane: l, job: job}
	if !l.beside {
		began := time.Now()
		t.err = l.run(job)
		l.waited += time.Since(began)
		return t
	}
	t.done = make(chan struct{})
	l.jobs <- t
	return t
}

// wait returns once the job is done. A nil ticket is.
func (t *ticket) wait() error {
	if t == nil || t.done == nil {
		if t == nil {
			return nil
		}
		return t.err
	}
	select {
	case <-t.done:
	default:
		began := time.Now()
		<-t.done
		t.lane.waited += time.Since(began)
	}
	return t.err
}

// end waits for all jobs and gives the first error.
func (l *lane) end() error {
	if l.beside {
		close(l.jobs)
		began := time.Now()
		<-l.ended
		l.waited += time.Since(began)
		l.beside = false
	}
	return l.err
}
