package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/msccl"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// disproof is a program that was found wrong: a finding.
type disproof struct{ error }

func (d disproof) Unwrap() error { return finding(d) }

// maxCounts bounds how many counts one command asks for.
const maxCounts = 1 << 16

// parseRanks reads counts like 2..64,128.
func parseRanks(text string) ([]int, error) {
	var list []int
	for _, part := range strings.Split(text, ",") {
		low, high, ranged := strings.Cut(part, "..")
		a, err := strconv.Atoi(low)
		b := a
		if ranged && err == nil {
			b, err = strconv.Atoi(high)
		}
		if err != nil || a < 1 || b < a || b-a >= maxCounts-len(list) {
			return nil, fmt.Errorf("--ranks %q: want counts like 64, 2..64 or 2..64,128", text)
		}
		for n := a; n <= b; n++ {
			list = append(list, n)
		}
	}
	return list, nil
}

type prover struct {
	f       algoFlags
	counts  []int
	all     bool
	bar     *proofBar
	reports []*verify.Report
	unfit   []string
}

// prove proves an algorithm at every count, or a file.
func (v *prover) prove(cmd *cobra.Command, arg string) error {
	a, err := algo.Find(arg)
	if err != nil {
		p, err := fromFile(cmd, arg, err)
		if err != nil {
			return err
		}
		return v.one(p)
	}
	ops := a.Ops
	if v.f.op != "" {
		op, err := sched.ParseCollective(v.f.op)
		if err != nil {
			return fmt.Errorf("--op: %w", err)
		}
		if v.all && !a.Serves(op) {
			return nil
		}
		ops = []sched.Collective{op}
	}
	if !v.all {
		if err := v.refuseIgnored(cmd, a, ops); err != nil {
			return err
		}
	}
	for _, op := range ops {
		skipped := 0
		var why error
		for _, n := range v.counts {
			s, err := v.f.read(a, n)
			if err != nil {
				return err
			}
			s.Op, s.Root = op, min(s.Root, n-1)
			v.bar.show(fmt.Sprintf("%s %s, %d ranks", a.Name, op, n))
			p, err := v.build(a, s)
			if err != nil && len(v.counts) == 1 && !v.all {
				return err
			}
			if err != nil {
				skipped, why = skipped+1, err
				continue
			}
			err = v.one(p)
			if v.all && errors.Is(err, verify.ErrTooLarge) { // neither proven nor wrong: said, and the others go on
				skipped, why = skipped+1, err
				continue
			}
			if err != nil {
				return err
			}
		}
		if skipped > 0 {
			v.unfit = append(v.unfit, fmt.Sprintf("%s %s: %s left out, the last because %v", a.Name, op, count(skipped, "count"), why))
		}
	}
	return nil
}

// refuseIgnored refuses a flag that the algorithm heeds for none of the operations.
func (v *prover) refuseIgnored(cmd *cobra.Command, a *algo.Algorithm, ops []sched.Collective) (err error) {
	for _, op := range ops {
		if err = v.f.refuseIgnored(cmd, a, op, v.counts[0]); err == nil {
			return nil
		}
	}
	return err
}

// build makes a program; of all algorithms, those of two levels get domains of
// the largest size up to 8 that the count allows.
func (v *prover) build(a *algo.Algorithm, s algo.Spec) (*sched.Program, error) {
	if v.all && s.Local == 0 {
		t := s
		for t.Local = 8; t.Local > 1; t.Local-- {
			if s.Ranks%t.Local == 0 && (a.Fits == nil || a.Fits(t) == nil) {
				return a.Program(t)
			}
		}
	}
	return a.Program(s)
}

func (v *prover) one(p *sched.Program) error {
	rep, err := verify.Program(p)
	if err != nil {
		return disproof{err}
	}
	rep.Sent, rep.Links = nil, nil
	v.reports = append(v.reports, rep)
	return nil
}

// loadProgram reads a file in either form. unknown is what to say about a name
// that is neither an algorithm nor a file.
func loadProgram(cmd *cobra.Command, path string, unknown error) (*sched.Program, error) {
	data, err := readInput(cmd, path)
	if errors.Is(err, os.ErrNotExist) && !strings.ContainsAny(path, "./\\") {
		return nil, unknown
	}
	if err != nil {
		return nil, err
	}
	p, err := msccl.Read(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// print gives a line a program, or where there are many of an algorithm, a line
// for all of them.
func (v *prover) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for i := 0; i < len(v.reports); {
		j := i + 1
		for j < len(v.reports) && v.reports[j].Program == v.reports[i].Program && v.reports[j].Op == v.reports[i].Op {
			j++
		}
		first, last := v.reports[i], v.reports[j-1]
		if j-i <= 3 {
			for _, r := range v.reports[i:j] {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Program, r.Op, count(r.Ranks, "rank"), reportLine(r))
			}
		} else {
			fmt.Fprintf(t, "%s\t%s\t%d to %s\t%s proven\n", first.Program, first.Op, first.Ranks, count(last.Ranks, "rank"), count(j-i, "program"))
		}
		i = j
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, u := range v.unfit {
		fmt.Fprintln(w, u)
	}
	if len(v.reports) > 1 {
		fmt.Fprintf(w, "%s proven\n", count(len(v.reports), "program"))
	}
	return nil
}

// reportLine says what a proof found out.
func reportLine(r *verify.Report) string {
	text := fmt.Sprintf("proven (%s): %s, a rank sends up to %.4g S", r.Method, count(r.Steps, "step"), float64(r.MaxSent)/float64(r.Chunks))
	switch {
	case r.Both:
		text += ", in place and without copies"
	case r.InPlace:
		text += ", in place"
	case r.Direct:
		text += ", without copies"
	}
	return text
}

// proofBar shows what long work is at, on a terminal and not before a second.
type proofBar struct {
	w     io.Writer
	start time.Time
	done  chan struct{}
	once  sync.Once // of its end

	mu    sync.Mutex // of what follows
	text  string
	last  time.Time
	shown bool
}

func newProofBar(w io.Writer) *proofBar {
	f, ok := w.(*os.File)
	if !ok {
		return &proofBar{}
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return &proofBar{}
	}
	p := &proofBar{w: w, start: time.Now(), done: make(chan struct{})}
	go func() { // what takes long is counted while it does
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-tick.C:
				p.show("")
			case <-p.done:
				tick.Stop()
				return
			}
		}
	}()
	return p
}

// show says what is done now; without a text, that it still is.
func (p *proofBar) show(text string) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if text != "" {
		p.text = text
	}
	now := time.Now()
	if p.text == "" || now.Sub(p.start) < time.Second || now.Sub(p.last) < 100*time.Millisecond {
		return
	}
	p.last, p.shown = now, true
	fmt.Fprintf(p.w, "\r\x1b[K%s (%ds)", p.text, int(now.Sub(p.start).Seconds()))
}

func (p *proofBar) clear() {
	if p.w == nil {
		return
	}
	p.once.Do(func() { close(p.done) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = ""
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
