package bench

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
)

// Serve takes part in a comparison: it answers the benchmark on its control
// socket until that hangs up. All ranks of c must serve.
func Serve(ctx context.Context, c *comm.Comm, socket, buffers string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "rank %d of %d\n", c.Rank(), c.Size()); err != nil {
		return err
	}
	s := &server{c: c, buffers: buffers}
	defer s.drop()
	for in := bufio.NewScanner(conn); in.Scan(); {
		answer, err := s.answer(ctx, in.Text())
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return err
		}
	}
	return nil
}

// server is one of our ranks in a comparison.
type server struct {
	c       *comm.Comm
	buffers string
	w       work
	inPlace bool
}

func (s *server) drop() {
	if s.w != nil {
		_ = s.w.free()
		s.w = nil
	}
}

// answer carries out a command of the comparison. Ranks meet and warm up before the clock starts. Errors of the caller
// are answers that begin with "cannot"; only those of the ranks end the process.
func (s *server) answer(ctx context.Context, line string) (string, error) {
	var name, variant string
	var bytes int64
	var iters int
	if n, _ := fmt.Sscanf(line, "prep %s %s %d", &name, &variant, &bytes); n == 3 {
		return s.prepare(ctx, name, bytes)
	}
	one, _ := fmt.Sscanf(line, "each %d", &iters)
	if n, _ := fmt.Sscanf(line, "run %d", &iters); n+one != 1 || s.w == nil {
		return "cannot understand: " + line, nil
	}
	if err := comm.Barrier(ctx, s.c); err != nil {
		return "", err
	}
	for i := 0; i < iters; i += 10 { // ranks that slept come to themselves
		if err := s.w.call(ctx, s.inPlace); err != nil {
			return "", err
		}
	}
	if one == 1 {
		return s.each(ctx, iters)
	}
	cpu, start := processorTime(), time.Now()
	for range iters {
		if err := s.w.call(ctx, s.inPlace); err != nil {
			return "", err
		}
	}
	took := time.Since(start)
	return fmt.Sprintf("took %d %d", took.Nanoseconds(), processorTime()-cpu), nil
}

// each times operations one by one.
func (s *server) each(ctx context.Context, iters int) (string, error) {
	times := make([]time.Duration, iters)
	cpu, last := processorTime(), time.Now()
	for i := range times {
		if err := s.w.call(ctx, s.inPlace); err != nil {
			return "", err
		}
		now := time.Now()
		times[i], last = now.Sub(last), now
	}
	b := fmt.Appendf(nil, "each %d", processorTime()-cpu)
	for _, t := range times {
		b = fmt.Appendf(b, " %d", t)
	}
	return string(b), nil
}

// prepare makes the buffers for an operation and size, and checks the result once. Old buffers go away first, when no
// rank reads them any more.
func (s *server) prepare(ctx context.Context, name string, bytes int64) (string, error) {
	op, err := ParseOp(name)
	if err != nil {
		return "cannot " + err.Error(), nil
	}
	// Nobody's memory goes away while another may still read it.
	if err := comm.Barrier(ctx, s.c); err != nil {
		return "", err
	}
	s.drop()
	cfg := Default()
	cfg.Op, cfg.Ranks, cfg.Buffers = op, s.c.Size(), s.buffers
	cfg.MinBytes, cfg.MaxBytes = bytes, bytes
	elements := int(cfg.Sizes()[0]) / cfg.Type.Size()
	if s.w, err = newWork(s.c, &cfg, max(elements, 1), nil); err != nil {
		return "", err
	}
	s.inPlace = op.Collective == sched.AllReduce && os.Getenv(ApartEnv) == "" || op.Collective == sched.Broadcast
	s.w.size(elements)
	m := &meter{c: s.c, cfg: &cfg, w: s.w}
	wrong, err := m.verify(ctx, s.inPlace, uint64(bytes))
	if err != nil {
		return "", err
	}
	if err := s.w.zero(ctx); err != nil {
		return "", err
	}
	if s.c.Rank() != 0 {
		wrong = 0 // the sum over all ranks, which is told once
	}
	return fmt.Sprintf("ready %d", wrong), nil
}
