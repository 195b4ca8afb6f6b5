package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/reduce"
)

// Printer writes nccl-tests' table as events come: what reads theirs reads ours.
type Printer struct {
	w       io.Writer
	cfg     Config
	cpu     bool
	ranks   int
	program string
}

// NewPrinter prints to w; with cpu also what a GB cost, in a column at the end.
func NewPrinter(w io.Writer, cfg Config, cpu bool) *Printer {
	return &Printer{w: w, cfg: cfg, cpu: cpu}
}

// Event prints a rank or a row.
func (p *Printer) Event(e Event) {
	if e.Hello != nil {
		if p.ranks == 0 {
			p.head(e.Hello)
		}
		fmt.Fprintf(p.w, "#  Rank %2d Pid %6d on %10s device %2d [%s]\n",
			e.Hello.Rank, e.Hello.Pid, e.Hello.Host, e.Hello.Rank, e.Hello.Transport)
		if p.ranks++; p.ranks == p.cfg.Ranks {
			p.columns()
		}
	}
	if e.Row != nil {
		p.row(e.Row)
	}
}

// head prints the lines above the table: what runs, and everything that the figures depend on.
func (p *Printer) head(h *Hello) {
	c := &p.cfg
	name := strings.ReplaceAll(c.Op.Collective.String(), "-", "_")
	switch c.Op.Collective {
	case sched.AllToAll:
		name = "alltoall"
	case sched.SendRecv:
		name = "sendrecv"
	}
	step := fmt.Sprintf("%g(factor)", c.StepFactor)
	if c.StepBytes > 0 {
		step = fmt.Sprintf("%d(bytes)", c.StepBytes)
	}
	iters := "auto"
	if c.Iters > 0 {
		iters = strconv.Itoa(c.Iters)
	}
	check := 0
	if c.Check {
		check = 1
	}
	fmt.Fprintf(p.w, "# weft bench %s, in the columns of %s_perf\n", c.Op, name)
	fmt.Fprintf(p.w, "# nRanks %d minBytes %d maxBytes %d step: %s warmup iters: %d iters: %s batches: %d validation: %d\n",
		c.Ranks, c.MinBytes, c.MaxBytes, step, c.Warmup, iters, c.Batches, check)
	fmt.Fprintf(p.w, "# transport %s, %s buffers, reductions by %s\n", h.Transport, c.Buffers, reduce.Path())
	if h.GPU != nil {
		fmt.Fprintf(p.w, "# device %s: %s, %s, ranks share it by %s\n", c.Device, h.GPU.Name, h.GPU.Driver, h.GPU.Sharing)
		fmt.Fprintf(p.w, "# way %s: %s\n", h.GPU.Way, h.GPU.Reason)
		fmt.Fprintf(p.w,
			"# its memory adds at %.4g GB/s (a = a + b over %s, %s by one rank); limit is what must be read and written at that rate\n",
			h.GPU.Add, unit.Bytes(h.GPU.AddBytes), p.cfg.Type)
	}
	if c.Unproven {
		fmt.Fprintf(p.w, "# the program is not proven\n")
	}
	fmt.Fprintf(p.w, "#\n# Using ranks\n")
}

// columns prints nccl-tests' heading, so that its readers can read this as well; our columns follow behind.
func (p *Printer) columns() {
	cpu := [3]string{}
	if p.cpu {
		cpu = [3]string{"          cpu", "  out   in", "  (s/GB)"}
	}
	if p.cfg.Device != "" {
		cpu[0], cpu[1], cpu[2] = cpu[0]+"     memory", cpu[1]+"    limit   in/limit", cpu[2]+"     (us)"
	}
	fmt.Fprintf(p.w, "#\n#%57s%-35s%-33s%s\n", "", "     out-of-place", "       in-place", cpu[0])
	fmt.Fprintf(p.w, "#%11s %13s %9s %7s %7s %8s %7s %7s %6s %8s %7s %7s %6s%s\n",
		"size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", cpu[1])
	fmt.Fprintf(p.w, "#%11s %13s %9s %7s %7s %8s %7s %7s %6s %8s %7s %7s %6s%s\n",
		"(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", cpu[2])
}

// time prints the columns out of place or in place, as nccl-tests has them. Below zero, nothing was checked.
func (p *Printer) time(t *Time) {
	if t == nil {
		fmt.Fprintf(p.w, " %8s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A")
		return
	}
	wrong := "N/A"
	if t.Wrong >= 0 {
		wrong = strconv.FormatInt(t.Wrong, 10)
	}
	fmt.Fprintf(p.w, " %8s %7.2f %7.2f %6s", fixed(t.Micros), t.AlgBW, t.BusBW, wrong)
}

// row prints a size. A line above it says when another program or path begins.
func (p *Printer) row(r *Point) {
	if program := r.Program + ", " + r.Way; r.Program != "" && program != p.program {
		fmt.Fprintf(p.w, "# from %d bytes: %s\n", r.Bytes, program)
		p.program = program
	}
	redop, root := "none", -1
	if p.cfg.Op.Reduces() {
		redop = p.cfg.Reduce.String()
	}
	if p.cfg.Op.Rooted() {
		root = p.cfg.Root
	}
	fmt.Fprintf(p.w, "%12d %13d %9s %7s %7d", r.Bytes, r.Count, p.cfg.Type, redop, root)
	p.time(r.Out)
	p.time(r.In)
	if p.cpu {
		for _, t := range []*Time{r.Out, r.In} {
			if t == nil {
				fmt.Fprintf(p.w, " %6s", "N/A")
			} else {
				fmt.Fprintf(p.w, " %6.3g", t.CPUPerG)
			}
		}
	}
	if p.cfg.Device != "" {
		best := r.In
		if best == nil {
			best = r.Out
		}
		fmt.Fprintf(p.w, " %8s %9.2f", fixed(r.Limit), best.Micros/r.Limit)
	}
	fmt.Fprintln(p.w)
}

// Foot prints the lines below the table.
func (p *Printer) Foot(r *Report) {
	verdict := "OK"
	if r.Wrong > 0 {
		verdict = "FAILED"
	}
	fmt.Fprintf(p.w, "# Out of bounds values : %d %s\n# Avg bus bandwidth    : %g\n#\n",
		r.Wrong, verdict, float64(int64(r.AvgBus*1e4+0.5))/1e4)
}

// fixed prints a time in the width of its column.
func fixed(us float64) string {
	switch {
	case us >= 10_000:
		return fmt.Sprintf("%.0f", us)
	case us >= 100:
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.2f", us)
}
