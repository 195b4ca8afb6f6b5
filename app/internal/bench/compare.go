package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/launch"
)

// Comparison is what to measure beside other libraries: float32 sums, all-reduce
// and broadcast in place, the others from one buffer into another.
type Comparison struct {
	Ops       []Op
	Transport string        // shm, tcp, or mixed on several hosts
	Hosts     *Namespaces   // hosts that ranks are on, as many each; nil for this one
	Ranks     []int         // numbers of ranks, one table each
	Sizes     []int64       // bytes of the larger buffer
	Rounds    int           // times every competitor has its turn at a size; the median counts
	Batch     time.Duration // how long a turn is meant to take
	Best      bool          // the fastest turn counts rather than the median: what code can do on a busy machine
	Apart     bool          // all-reduce has an input apart from its output, and not one buffer
	Bind      bool          // every rank stays on one processor, ours and theirs alike
	Busy      Busy          // what else the processors have to do
	Spread    bool          // every operation is timed by itself: medians and 99th percentiles, beside libraries that yield
	Canonical bool          // ours beside ours with sums in the canonical order, and nobody else
	Self      []string      // command that starts one of our ranks
	Peers     []*Peer       // whom to compare with; nil is all for the transport
	Cache     string        // folder for built programs
	Progress  func(format string, args ...any)
}

// Cell is what one family reached at one size.
type Cell struct {
	Name    string  `json:"name"`             // which of the family was fastest, and how
	Micros  float64 `json:"time_us"`          // the median of the rounds, or the fastest if that was asked for
	Low     float64 `json:"low_us"`           // the fastest of the rounds
	High    float64 `json:"high_us"`          // the slowest
	P50     float64 `json:"p50_us,omitempty"` // of single operations, where they were timed
	P99     float64 `json:"p99_us,omitempty"`
	BusBW   float64 `json:"busbw_GBps"`
	CPUPerG float64 `json:"cpu_s_per_GB"` // processor seconds of all ranks for a GB that must move
	Wrong   int64   `json:"wrong"`
	Wire    float64 `json:"wire_bytes,omitzero"` // that passed between hosts for an operation, where they are namespaces
}

// Row is one size with one number of ranks. Cells are by family.
type Row struct {
	Op    string           `json:"op"`
	Ranks int              `json:"ranks"`
	Bytes int64            `json:"bytes"`
	Cells map[string]*Cell `json:"cells"`
	All   []*Cell          `json:"all"`                       // every competitor by itself, in order of the list
	Least int64            `json:"least_wire_bytes,omitzero"` // that must pass between hosts

	// Cost is the median over the rounds of the time with canonical sums over that without, where they were compared.
	Cost float64 `json:"canonical_over_default,omitzero"`
}

// Table is the outcome of a comparison.
type Table struct {
	Transport string    `json:"transport"`
	Apart     bool      `json:"out_of_place"`
	Hosts     int       `json:"hosts,omitzero"`            // that ranks were on, if they were made for it
	Rails     int       `json:"rails,omitzero"`            // networks between them
	Rate      float64   `json:"rate_bytes_per_s,omitzero"` // of a rail
	Busy      Busy      `json:"busy"`
	Spread    bool      `json:"spread"`
	Rounds    int       `json:"rounds"`
	Families  []string  `json:"families"`
	Rows      []*Row    `json:"rows"`
	Missing   []Missing `json:"missing"`
	Failed    []Missing `json:"failed"`
}

// others are the libraries that weft is compared with. Canonical sums are compared with weft's usual ones alone.
func (c *Comparison) others() []*Peer {
	switch {
	case c.Peers != nil || c.Canonical:
		return c.Peers
	case c.Hosts != nil:
		return c.Hosts.peers()
	case c.Spread:
		return yielding(c.Transport)
	}
	return Peers(c.Transport)
}

// Compare measures. Competitors take turns in every round, and the order is
// rotated from round to round, so that what else the machine does falls on all
// of them alike.
func Compare(ctx context.Context, c Comparison) (*Table, error) {
	if c.Progress == nil {
		c.Progress = func(string, ...any) {}
	}
	c.Peers = c.others()
	t := &Table{Transport: c.Transport, Apart: c.Apart, Busy: c.Busy, Spread: c.Spread, Rounds: c.Rounds}
	present, bins := c.own(), map[*Peer]string{}
	for _, p := range c.Peers {
		c.Progress("building %s", p.Name)
		bin, err := p.ready(ctx, c.Cache)
		if err != nil {
			t.Missing = append(t.Missing, Missing{p.Name, err.Error(), p.Install})
			continue
		}
		present, bins[p] = append(present, p), bin
	}
	for _, p := range present {
		if !slices.Contains(t.Families, p.Family) {
			t.Families = append(t.Families, p.Family)
		}
	}
	endHogs, err := c.startHogs(ctx)
	if err != nil {
		return t, err
	}
	defer endHogs()
	for _, n := range c.Ranks {
		rows, failed, err := c.ranks(ctx, n, present, bins)
		t.Rows = append(t.Rows, rows...)
		t.Failed = append(t.Failed, failed...)
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

// own lists weft's own entries of a comparison: registered and plain buffers, or the canonical order in place of plain
// ones. Between hosts their transport is required, so that none falls back to a faster one.
func (c *Comparison) own() []*Peer {
	if len(c.Self) == 0 {
		return nil
	}
	list := []*Peer{Own(Registered, c.Transport, c.Self), Own(Plain, c.Transport, c.Self)}
	if c.Canonical {
		list[1] = Own(Canonical, c.Transport, c.Self)
	}
	for _, p := range list {
		if c.Hosts == nil {
			break
		}
		p.start = func(_ string, n int, _ int64, _ string) launch.Spec {
			env := append(ownEnv(p.Family), "WEFT_TRANSPORT="+c.Transport, "WEFT_REQUIRE="+c.Transport,
				"WEFT_INTERFACES="+strings.Join(c.Hosts.rails(), ","))
			return c.Hosts.on(n, c.Self, env...)
		}
	}
	return list
}

// ranks measures all sizes with n ranks.
func (c *Comparison) ranks(ctx context.Context, n int, peers []*Peer, bins map[*Peer]string) (rows []*Row, failed []Missing, err error) {
	dir, err := os.MkdirTemp("", "weft-bench-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	var running []*competitor
	defer func() {
		for _, r := range running {
			r.end()
		}
	}()
	drop := func(p *Peer, err error) {
		failed = append(failed, Missing{Name: fmt.Sprintf("%s, %d ranks", p.Name, n), Why: err.Error()})
		running = slices.DeleteFunc(running, func(r *competitor) bool { return r.peer == p })
	}
	for i, p := range peers {
		c.Progress("%d ranks: starting %s", n, p.Name)
		own := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return nil, nil, err
		}
		spec := p.start(bins[p], n, slices.Max(c.Sizes), own)
		if c.Bind {
			spec.Env = append(spec.Env, BindEnv+"=1")
		}
		if c.Apart {
			spec.Env = append(spec.Env, ApartEnv+"=1")
		}
		r, err := begin(ctx, p, spec, n)
		if err != nil {
			drop(p, err)
			continue
		}
		running = append(running, r)
		if err := c.confine(r); err != nil {
			return nil, nil, err
		}
	}
	for _, op := range c.Ops {
		for _, size := range c.Sizes {
			if err := ctx.Err(); err != nil {
				return rows, failed, err
			}
			c.Progress("%s, %d ranks, %d bytes", op, n, size)
			before := len(failed)
			row := c.size(op, n, size, running, drop)
			if err := ctx.Err(); err != nil { // it was stopped, and with it the competitors
				return rows, failed[:before], err
			}
			rows = append(rows, row)
			if op.Collective == sched.Barrier {
				break // has no size
			}
		}
	}
	return rows, failed, nil
}

// turn is a competitor at one size.
type turn struct {
	*competitor
	variant string
	iters   int
	wrong   int64
	times   []float64 // of one operation, in nanoseconds
	cpu     time.Duration
	done    int    // operations in all
	ran     int    // and with those that do not count
	wire    uint64 // bytes that passed between hosts meanwhile
	err     error
}

// size gives every competitor its turns at one size.
func (c *Comparison) size(op Op, n int, bytes int64, running []*competitor, drop func(*Peer, error)) *Row {
	var turns []*turn
	for _, r := range slices.Clone(running) {
		t, err := c.prepare(op, r, bytes)
		switch {
		case errors.Is(err, errCannot):
		case err != nil:
			drop(r.peer, err)
		default:
			turns = append(turns, t)
		}
	}
	for round := range c.Rounds {
		for i := range turns {
			t := turns[(i+round)%len(turns)]
			if t.err == nil {
				t.err = c.crossing(t, func() error {
					if c.Spread {
						return t.onceEach(c.Batch)
					}
					return t.once(c.Batch)
				})
			}
		}
	}
	row := &Row{Op: op.String(), Ranks: n, Bytes: bytes, Cells: map[string]*Cell{}}
	if c.Hosts != nil {
		row.Least = leastCrossing(op, len(c.Hosts.Names), n, bytes)
	}
	if c.Canonical && len(turns) == 2 && turns[0].err == nil && turns[1].err == nil {
		row.Cost = ratios(turns[1].times, turns[0].times)
	}
	for _, t := range turns {
		if t.err != nil {
			drop(t.peer, t.err)
			continue
		}
		cell := t.cell(op, n, bytes, c.Best, c.Spread)
		row.All = append(row.All, cell)
		if cell.elsewhere(row.Least) {
			continue
		}
		if best := row.Cells[t.peer.Family]; best == nil || cell.Micros < best.Micros {
			row.Cells[t.peer.Family] = cell
		}
	}
	return row
}

// beats reports whether a variant is better than the best so far: right where that is wrong, or faster and no less right.
func (t *turn) beats(best *turn, faster bool) bool {
	return t.wrong == 0 && best.wrong > 0 || faster && (t.wrong == 0 || best.wrong > 0)
}

// prepare finds the best variant of a competitor and how many operations fill a batch.
func (c *Comparison) prepare(op Op, r *competitor, bytes int64) (*turn, error) {
	var best *turn
	var fastest time.Duration
	variants := r.peer.of(op.String())
	for _, v := range variants {
		t := &turn{competitor: r, variant: v}
		per, err := c.calibrate(op, t, bytes)
		if errors.Is(err, errCannot) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if best == nil || t.beats(best, per < fastest) {
			best, fastest = t, per
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%s: %w do %s", r.peer.Name, errCannot, op)
	}
	// The last one that was prepared is what the ranks are set to.
	if best.variant != variants[len(variants)-1] {
		if _, err := r.prepare(op.String(), best.variant, bytes); err != nil {
			return nil, err
		}
	}
	return best, nil
}

// maxIters bounds a batch; the fastest operations take some 100 ns.
const maxIters = 1 << 18

// fill is how many operations that take so long fill a batch. A rank that leaves the
// warm-up before the others counts the rest of theirs, so one operation would say too
// much: 8 ranks on 2 cores were 1.5 times slower by it than by three. Of those that
// take much longer than a batch it has to do.
func fill(batch, one time.Duration) int {
	n := int(min(maxIters, max(1, batch/one)))
	if one <= 5*batch {
		n = max(n, 3)
	}
	return n
}

// calibrate raises the number of operations until a batch takes half the time
// that it is meant to, and gives the least time that one took.
func (c *Comparison) calibrate(op Op, t *turn, bytes int64) (per time.Duration, err error) {
	if t.wrong, err = t.prepare(op.String(), t.variant, bytes); err != nil {
		return 0, err
	}
	t.iters = 1
	for step := 0; ; step++ {
		took, _, err := t.batch(t.iters)
		if err != nil {
			return 0, err
		}
		one := max(1, took/time.Duration(t.iters))
		if step == 0 || one < per {
			per = one
		}
		want := fill(c.Batch, one)
		if took >= c.Batch/2 || step > 0 && want <= t.iters {
			t.iters = want
			return per, nil
		}
		t.iters = min(want, t.iters*16)
	}
}

// once takes a turn. Ranks that spin and are more than the processors can be a
// thousand times slower from one turn to the next; a turn that took far too long
// makes the next one shorter. One that was far too short is taken again with more
// operations: the few that it had say little, as a rank may find the others there
// already.
func (t *turn) once(want time.Duration) error {
	var took, cpu time.Duration
	for try := 0; ; try++ {
		var err error
		if took, cpu, err = t.batch(t.iters); err != nil {
			return err
		}
		t.ran += t.iters
		more := int(min(maxIters, int64(t.iters)*int64(want)/max(int64(took), 1)))
		if took >= want/4 || more <= t.iters || try == 4 {
			break
		}
		t.iters = min(more, t.iters*16)
	}
	t.times = append(t.times, float64(took)/float64(t.iters))
	t.cpu += cpu
	t.done += t.iters
	if took > 4*want {
		t.iters = fill(want, took/time.Duration(t.iters))
	}
	return nil
}

// cell sums up a turn: the median of the batches, or with best the fastest. The bandwidth follows nccl-tests, and
// processor time is per gigabyte on the bus of all ranks.
func (t *turn) cell(op Op, n int, bytes int64, best, spread bool) *Cell {
	name := t.peer.Name
	if t.variant != "default" {
		name += " " + t.variant
	}
	s := slices.Sorted(slices.Values(t.times))
	cell := &Cell{Name: name, Micros: median(s) / 1e3, Low: s[0] / 1e3, High: s[len(s)-1] / 1e3, Wrong: t.wrong,
		Wire: float64(t.wire) / float64(max(t.ran, 1))}
	switch {
	case spread:
		cell.spread(s)
	case best:
		cell.Micros = cell.Low
	}
	cell.BusBW = float64(bytes) * op.BusFactor(n) / (cell.Micros * 1e3)
	if moved := float64(bytes) * op.BusFactor(n) * float64(n) * float64(t.done) / 1e9; moved > 0 {
		cell.CPUPerG = t.cpu.Seconds() / moved
	}
	return cell
}

// ratios is the median of a over b, round by round.
func ratios(a, b []float64) float64 {
	var list []float64
	for i := range min(len(a), len(b)) {
		list = append(list, a[i]/b[i])
	}
	slices.Sort(list)
	return median(list)
}

// median of sorted values.
func median(s []float64) float64 {
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
