package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/launch"
)

// runCompare measures operations beside other libraries.
func (f *benchFlags) runCompare(cmd *cobra.Command, args []string) error {
	layouts, err := f.layouts(cmd)
	if err != nil {
		return err
	}
	c, err := f.comparison(args, len(layouts) > 0, cmd.Flags().Changed("sizes"))
	if err != nil {
		return err
	}
	if len(layouts) == 0 {
		if c.Ranks, err = counts(f.ranks); err != nil {
			return err
		}
	}
	if c.Self, err = self(); err != nil {
		return err
	}
	if c.Cache, err = bench.Cache(); err != nil {
		return err
	}
	tables, failed := compareAll(cmd, c, layouts)
	if failed != nil && len(tables) == 0 {
		return failed
	}
	// What was measured before it was stopped is shown.
	return errors.Join(failed, output(cmd, f.output, func(w io.Writer) error { return f.printTables(w, &c, tables) }))
}

// printTables prints one table for each layout of hosts. In JSON, one alone is no list.
func (f *benchFlags) printTables(w io.Writer, c *bench.Comparison, tables []*bench.Table) error {
	if f.json && len(tables) == 1 {
		return printJSON(w, tables[0])
	}
	if f.json {
		return printJSON(w, tables)
	}
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := printComparison(w, c, t, f.cpu); err != nil {
			return err
		}
	}
	return nil
}

// comparison is what the flags and operations ask for. With hosts, the ranks run on several hosts; sized is whether sizes are given.
func (f *benchFlags) comparison(ops []string, hosts, sized bool) (bench.Comparison, error) {
	c := bench.Comparison{Transport: f.cfg.Transport, Rounds: f.rounds, Batch: f.batch, Best: f.best, Apart: f.apart, Bind: f.cfg.Bind,
		Spread: f.spread, Canonical: f.canonical, Busy: bench.Busy{Hogs: f.hogs}}
	if c.Transport == "" && hosts {
		c.Transport = "mixed"
	}
	if c.Transport == "" {
		c.Transport = "shm"
	}
	if c.Transport != "shm" && c.Transport != "tcp" && (c.Transport != "mixed" || !hosts) {
		return c, fmt.Errorf("--transport %s: other libraries have shm and tcp, and with --namespaces both", c.Transport)
	}
	if c.Rounds < 1 || c.Batch <= 0 {
		return c, fmt.Errorf("--rounds %d --batch %s: want at least 1 round and some time", c.Rounds, c.Batch)
	}
	if err := f.contradiction(); err != nil {
		return c, err
	}
	if f.quota != "" {
		n, err := strconv.ParseFloat(strings.TrimSuffix(f.quota, "%"), 64)
		if err != nil || !(n >= 1 && n <= 100) || !strings.HasSuffix(f.quota, "%") {
			return c, fmt.Errorf("--quota %q: want a share of the processors from 1%% to 100%%", f.quota)
		}
		c.Busy.Quota = n / 100
	}
	if len(ops) == 0 {
		ops = []string{"all-reduce"}
	}
	var err error
	if c.Ops, err = f.operations(ops, sized); err != nil {
		return c, err
	}
	for _, s := range strings.Split(f.sizes, ",") {
		n, err := bench.ParseSize(s)
		if err != nil || n < 4 {
			return c, fmt.Errorf("--sizes %q: want sizes of at least one float32, like 8,32K,1M", s)
		}
		c.Sizes = append(c.Sizes, n)
	}
	return c, nil
}

// contradiction finds flags that do not go together.
func (f *benchFlags) contradiction() error {
	switch {
	case f.hogs < 0 || (f.hogs > 0 || f.quota != "") && !f.spread:
		return fmt.Errorf("--hogs %d --quota %q: want no hogs or more, and --spread with them", f.hogs, f.quota)
	case f.canonical && (f.spread || f.best):
		return errors.New("--canonical has medians of ratios; leave out --spread and --best")
	case f.spread && f.best:
		return errors.New("--spread has medians, --best the fastest turn; leave out one of them")
	}
	return nil
}

// operations reads the names of operations, and refuses flags that concern none of them.
func (f *benchFlags) operations(names []string, sized bool) (ops []bench.Op, err error) {
	for _, name := range names {
		op, err := bench.ParseOp(name)
		if err != nil {
			return nil, err
		}
		if f.canonical && !op.Reduces() {
			return nil,
				fmt.Errorf("--canonical %s: it sums nothing, so no order of sums can cost anything; want all-reduce, reduce-scatter or reduce", op)
		}
		ops = append(ops, op)
	}
	if f.apart && !slices.ContainsFunc(ops, func(o bench.Op) bool { return o.Collective == sched.AllReduce }) {
		return nil, fmt.Errorf("--out-of-place is for all-reduce, which is not among %s; leave it out", strings.Join(names, ", "))
	}
	if sized && !slices.ContainsFunc(ops, func(o bench.Op) bool { return o.Collective != sched.Barrier }) {
		return nil, fmt.Errorf("--sizes %s: a barrier has no size; leave it out", f.sizes)
	}
	return ops, nil
}

// compareAll measures on this machine, or on every layout of hosts if there are any: a table each. With an error it gives the
// tables of what was measured before.
func compareAll(cmd *cobra.Command, c bench.Comparison, layouts []layout) (tables []*bench.Table, err error) {
	show, done := overwritten(cmd.ErrOrStderr())
	c.Progress = show
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if len(layouts) == 0 {
		table, err := bench.Compare(ctx, c)
		done()
		if table == nil || len(table.Rows) == 0 && err != nil {
			return nil, err
		}
		return []*bench.Table{table}, err
	}
	for _, l := range layouts {
		table, err := l.compare(ctx, c)
		done()
		if table != nil {
			tables = append(tables, table)
		}
		if err != nil {
			return tables, fmt.Errorf("--namespaces %dx%d: %w", l.Hosts, l.Ranks, err)
		}
	}
	return tables, nil
}

// counts are numbers of ranks, like 2,4,8.
func counts(list string) (all []int, err error) {
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > launch.MaxRanks {
			return nil, fmt.Errorf("-n %q: want numbers of ranks, like 2,4,8, up to %d", s, launch.MaxRanks)
		}
		all = append(all, n)
	}
	return all, nil
}

// layouts are what --namespaces asks for: hosts, ranks on each, and what joins them.
func (f *benchFlags) layouts(cmd *cobra.Command) (list []layout, err error) {
	rate, err := railRate(f.rate)
	if err != nil {
		return nil, err
	}
	if f.spaces == "" {
		return nil, f.refuseRails(cmd)
	}
	if cmd.Flags().Changed("ranks") {
		return nil, fmt.Errorf("-n %s with --namespaces %s, which says how many ranks there are; leave out one of them", f.ranks, f.spaces)
	}
	if f.rails < 1 || f.rails > 8 {
		return nil, fmt.Errorf("--rails %d: want 1 to 8 networks", f.rails)
	}
	for _, s := range strings.Split(f.spaces, ",") {
		l := layout{Wiring: bench.Wiring{Rails: f.rails, Rate: rate.Bytes()}}
		if _, err := fmt.Sscanf(s+" ", "%dx%d ", &l.Hosts, &l.Ranks); err != nil || !l.fits() {
			return nil, fmt.Errorf("--namespaces %q: want HOSTSxRANKS such as 2x4: 2 to 200 hosts, with at least one rank each, %d ranks in all",
				s, launch.MaxRanks)
		}
		list = append(list, l)
	}
	return list, nil
}

// refuseRails refuses networks between hosts where there are no hosts.
func (f *benchFlags) refuseRails(cmd *cobra.Command) error {
	if f.rate != "" || cmd.Flags().Changed("rails") {
		return errors.New("--rails and --rate are those of --namespaces; give that, too")
	}
	return nil
}

func (l *layout) fits() bool {
	return l.Hosts >= 2 && l.Hosts <= 200 && l.Ranks >= 1 && l.Hosts*l.Ranks <= launch.MaxRanks
}

// railRate reads the rate of a rail; 0 leaves rails as fast as they are.
func railRate(text string) (rate unit.BitRate, err error) {
	if text == "" {
		return 0, nil
	}
	if rate, err = unit.ParseBitRate(text); err != nil || rate < 1e6 {
		return 0, fmt.Errorf("--rate %q: want the rate of a rail, like 1Gb/s, of 1 Mb/s or more", text)
	}
	return rate, nil
}

// layout is hosts made of namespaces, each with the same number of ranks.
type layout struct {
	bench.Wiring
	Ranks int
}

// compare measures on the layout's hosts, which exist meanwhile.
// With an error the table has the rows that were measured before it, or is nil.
func (l *layout) compare(ctx context.Context, c bench.Comparison) (table *bench.Table, err error) {
	c.Ranks = []int{l.Hosts * l.Ranks}
	err = l.with(ctx, func(n *bench.Namespaces) (err error) {
		c.Hosts = n
		table, err = bench.Compare(ctx, c)
		return err
	})
	if table == nil || err != nil && len(table.Rows) == 0 {
		return nil, err
	}
	table.Hosts, table.Rails, table.Rate = l.Hosts, l.Rails, float64(l.Rate)
	return table, err
}

// printComparison writes a table with what it is of.
func printComparison(w io.Writer, c *bench.Comparison, t *bench.Table, cpu bool) error {
	statistic := "medians"
	if c.Best {
		statistic = "the fastest"
	}
	apart := ""
	if c.Apart {
		apart = ", all-reduce out of place"
	}
	where := ""
	if t.Hosts > 0 {
		where = fmt.Sprintf(" on %d hosts of %d ranks", t.Hosts, t.Rows[0].Ranks/t.Hosts)
	}
	if t.Rails > 1 {
		where += fmt.Sprintf(", %d rails", t.Rails)
	}
	if t.Rate > 0 {
		where += fmt.Sprintf(" of %s", unit.Rate(t.Rate).Bits())
	}
	if c.Spread {
		statistic = "single operations"
	}
	fmt.Fprintf(w, "# float32 sums over %s%s, %s of %d turns taken in one run, microseconds an operation%s\n",
		c.Transport, where, statistic, c.Rounds, apart)
	if c.Spread {
		fmt.Fprintf(w, "# next to %d busy processes", c.Busy.Hogs)
		if c.Busy.Quota > 0 {
			fmt.Fprintf(w, ", with %.0f%% of the processors", c.Busy.Quota*100)
		}
		fmt.Fprintf(w, "; %d processors\n", runtime.NumCPU())
	}
	t.Absent(w)
	t.Crossed(w)
	if err := t.Markdown(w); err != nil {
		return err
	}
	if won, of := t.Won(); of > 0 && !c.Spread {
		fmt.Fprintf(w, "# not slower than the best of the others, on registered buffers: %d of %d rows\n", won, of)
	}
	if !cpu {
		return nil
	}
	fmt.Fprintln(w, "\n# processor seconds of all ranks for a GB that must move")
	return t.Processor(w)
}

// overwritten shows a line that is written over, on a terminal only.
func overwritten(w io.Writer) (show func(string, ...any), done func()) {
	file, ok := w.(*os.File)
	if ok {
		st, err := file.Stat()
		ok = err == nil && st.Mode()&os.ModeCharDevice != 0
	}
	if !ok {
		return func(string, ...any) {}, func() {}
	}
	return func(format string, args ...any) { fmt.Fprintf(w, "\r\x1b[K"+format, args...) }, func() { fmt.Fprint(w, "\r\x1b[K") }
}

// wrap breaks a list at commas into lines of at most width letters.
func wrap(s string, width int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Split(s, " ") {
		if i > 0 && column+1+len(word) > width {
			b.WriteByte('\n')
			column = 0
		} else if i > 0 {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
