package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/bench"
)

// runCompare measures operations beside other libraries.
func (f *benchFlags) runCompare(cmd *cobra.Command, args []string) (err error) {
	c := bench.Comparison{Transport: f.cfg.Transport, Rounds: f.rounds, Batch: f.batch, Best: f.best, Apart: f.apart, Bind: f.cfg.Bind, Spread: f.spread, Busy: bench.Busy{Hogs: f.hogs}}
	hosts, local := 0, 0
	if f.spaces != "" {
		if _, err := fmt.Sscanf(f.spaces+" ", "%dx%d ", &hosts, &local); err != nil || hosts < 2 || hosts > 200 || local < 1 {
			return fmt.Errorf("--namespaces %q: want HOSTSxRANKS such as 2x4: at least 2 hosts, with at least one rank each", f.spaces)
		}
		if cmd.Flags().Changed("ranks") {
			return fmt.Errorf("-n %s with --namespaces %s, which says how many ranks there are; leave out one of them", f.ranks, f.spaces)
		}
		f.ranks = strconv.Itoa(hosts * local)
		if c.Transport == "" {
			c.Transport = "mixed"
		}
	}
	if c.Transport == "" {
		c.Transport = "shm"
	}
	if c.Transport != "shm" && c.Transport != "tcp" && (c.Transport != "mixed" || hosts == 0) {
		return fmt.Errorf("--transport %s: other libraries have shm and tcp, and with --namespaces both", c.Transport)
	}
	if c.Rounds < 1 || c.Batch <= 0 {
		return fmt.Errorf("--rounds %d --batch %s: want at least 1 round and some time", c.Rounds, c.Batch)
	}
	if f.hogs < 0 || (f.hogs > 0 || f.quota != "") && !f.spread {
		return fmt.Errorf("--hogs %d --quota %q: want no hogs or more, and --spread with them", f.hogs, f.quota)
	}
	if f.spread && f.best {
		return errors.New("--spread has medians, --best the fastest turn; leave out one of them")
	}
	if f.quota != "" {
		n, err := strconv.ParseFloat(strings.TrimSuffix(f.quota, "%"), 64)
		if err != nil || !(n >= 1 && n <= 100) || !strings.HasSuffix(f.quota, "%") {
			return fmt.Errorf("--quota %q: want a share of the processors from 1%% to 100%%", f.quota)
		}
		c.Busy.Quota = n / 100
	}
	if len(args) == 0 {
		args = []string{"all-reduce"}
	}
	for _, a := range args {
		op, err := bench.ParseOp(a)
		if err != nil {
			return err
		}
		c.Ops = append(c.Ops, op)
	}
	for _, s := range strings.Split(f.sizes, ",") {
		n, err := bench.ParseSize(s)
		if err != nil || n < 4 {
			return fmt.Errorf("--sizes %q: want sizes of at least one float32, like 8,32K,1M", s)
		}
		c.Sizes = append(c.Sizes, n)
	}
	for _, s := range strings.Split(f.ranks, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("-n %q: want numbers of ranks, like 2,4,8", s)
		}
		c.Ranks = append(c.Ranks, n)
	}
	if c.Self, err = self(); err != nil {
		return err
	}
	if c.Cache, err = bench.Cache(); err != nil {
		return err
	}
	if hosts > 0 {
		if c.Hosts, err = bench.NewNamespaces(cmd.Context(), hosts); err != nil {
			return fmt.Errorf("--namespaces %s: %w", f.spaces, err)
		}
		defer func() { err = errors.Join(err, c.Hosts.Close()) }()
	}
	show, done := overwritten(cmd.ErrOrStderr())
	c.Progress = show
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	table, err := bench.Compare(ctx, c)
	done()
	if err != nil {
		return err
	}
	return output(cmd, f.output, func(w io.Writer) error {
		if f.json {
			return printJSON(w, table)
		}
		statistic := "medians"
		if c.Best {
			statistic = "the fastest"
		}
		apart := ""
		if c.Apart {
			apart = ", all-reduce out of place"
		}
		where := ""
		if hosts > 0 {
			where = fmt.Sprintf(" on %d hosts of %d ranks", hosts, local)
		}
		if c.Spread {
			statistic = "single operations"
		}
		fmt.Fprintf(w, "# float32 sums over %s%s, %s of %d turns taken in one run, microseconds an operation%s\n", c.Transport, where, statistic, c.Rounds, apart)
		if c.Spread {
			fmt.Fprintf(w, "# beside %d processes that never wait", c.Busy.Hogs)
			if c.Busy.Quota > 0 {
				fmt.Fprintf(w, ", with %.0f%% of the processors", c.Busy.Quota*100)
			}
			fmt.Fprintf(w, "; %d processors\n", runtime.NumCPU())
		}
		table.Absent(w)
		if err := table.Markdown(w); err != nil {
			return err
		}
		if !f.cpu {
			return nil
		}
		fmt.Fprintln(w, "\n# processor seconds of all ranks for a GB that must move")
		return table.Processor(w)
	})
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
