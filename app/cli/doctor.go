package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
	"github.com/weft-fabric/weft/observe/evidence"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/predict/tune"
)

// loadSite loads the cluster that is named, nil if none is.
func loadSite(cmd *cobra.Command, name string, p presetFlags) (*cluster.Cluster, error) {
	if name == "" {
		return nil, nil
	}
	return loadCluster(cmd, name, p)
}

// reportVerdict is the finding that a report comes to, if it does: nothing understood, or something at or above a level.
func reportVerdict(r *doctor.Report, level doctor.Severity) error {
	if r.Blind() {
		return finding{fmt.Errorf("unknown: %s given, none understood", count(len(r.Unread), "file"))}
	}
	if worst, any := r.Worst(); !any || worst < level {
		return nil
	}
	n := 0
	for _, x := range r.Findings {
		if x.Severity >= level {
			n++
		}
	}
	return finding{fmt.Errorf("%s at or above %s", count(n, "finding"), level)}
}

func newDoctor() *cobra.Command {
	var f struct {
		cluster, failOn     string
		asJSON, list, force bool
		preset              presetFlags
	}
	cmd := &cobra.Command{
		Use:   "doctor [PATH|-|ras://HOST[:PORT]]...",
		Short: "Find the cause of a failed, hung or slow job in logs, dumps and counters",
		Long: `Read logs, dumps and counters, recognise them by content, join them across ranks and
hosts, and print one page: the verdict, the evidence, and the commands to run next.
PATH is a file or a folder, plain or gzip; default: this host.

It understands ` + strings.Join(read.Kinds(), ", ") + `.

RAS servers before NCCL 2.29.2 can crash when asked, so only newer ones are asked.
--force-ras asks anyway, for jobs that hang already.

Exit code 0 means that nothing at or above --fail-on was found. Exit code 1 means such
a finding, or that none of the given files could be understood, so the answer is
unknown. Exit code 2 means wrong use.`,
		Example: `  weft doctor /var/log/job42/
  weft doctor nccl.n0.log nccl.n1.log dmesg.n0.txt --json
  weft doctor dumps/ --cluster examples/rail-1k.yaml
  weft doctor --list
  weft doctor explain tcp-fallback`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.list && len(args) > 0 {
				return fmt.Errorf("--list shows what can be found and reads nothing; leave %s out", args[0])
			}
			if f.list {
				return printCatalogue(cmd.OutOrStdout(), f.asJSON)
			}
			level, err := doctor.ParseSeverity(f.failOn)
			if err != nil {
				return fmt.Errorf("--fail-on: %w", err)
			}
			site, err := loadSite(cmd, f.cluster, f.preset)
			if err != nil {
				return err
			}
			c, err := gather(cmd, args, f.force)
			if err != nil {
				return err
			}
			var o doctor.Options
			if site != nil {
				o.Site = doctor.NewSite(site.Graph)
				o.Expect = expect(site, c)
			}
			r := doctor.Diagnose(c, o)
			if f.asJSON {
				err = printJSON(cmd.OutOrStdout(), r)
			} else {
				err = printReport(cmd.OutOrStdout(), r)
			}
			if err != nil {
				return err
			}
			return reportVerdict(r, level)
		},
	}
	s := cmd.Flags()
	s.StringVar(&f.cluster, "cluster", "",
		"`CLUSTER` file or preset: name rail, leaf and port of suspects, and hold measurements against predictions")
	s.StringVar(&f.failOn, "fail-on", "warning", "exit with 1 from this `SEVERITY` on: info, warning, critical")
	s.BoolVar(&f.asJSON, "json", false, "print as JSON")
	s.BoolVar(&f.list, "list", false, "list everything that can be found, with how sure and why")
	s.BoolVar(&f.force, "force-ras", false, "ask RAS servers of any NCCL version, although old ones may crash")
	f.preset.register(cmd)
	cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	cmd.RegisterFlagCompletionFunc("fail-on", cobra.FixedCompletions([]cobra.Completion{"info", "warning", "critical"},
		cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(newDoctorExplain())
	cmd.Args = cobra.ArbitraryArgs
	return cmd
}

// gather reads the sources, or this host, with progress on standard error for many files.
func gather(cmd *cobra.Command, args []string, force bool) (*doctor.Case, error) {
	if len(args) == 0 {
		return evidence.Live(cmd.Context())
	}
	o := evidence.Options{Stdin: cmd.InOrStdin(), ForceRAS: force, Progress: func(n, all int) {
		if all >= 200 && (n%100 == 0 || n == all) {
			fmt.Fprintf(cmd.ErrOrStderr(), "\rread %d of %d files", n, all)
			if n == all {
				fmt.Fprintln(cmd.ErrOrStderr())
			}
		}
	}, Bytes: func(n, all int64) {
		if all < 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "\rread %d MB", n/1e6)
			return
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "\rread %d of %d MB", n/1e6, all/1e6)
		if n == all {
			fmt.Fprintln(cmd.ErrOrStderr())
		}
	}}
	return evidence.Gather(cmd.Context(), args, o)
}

// expect predicts what the benchmark rows of a case should have been on a cluster.
func expect(c *cluster.Cluster, k *doctor.Case) []doctor.Expectation {
	var out []doctor.Expectation
	seen := map[string]bool{}
	models := map[int]*tune.NCCL{}
	for _, b := range k.Bench {
		if b.Size < 1<<20 || b.Ranks < 2 || b.Ranks > c.Graph.Count(topo.GPU) {
			continue
		}
		op, err := sched.ParseCollective(strings.ReplaceAll(strings.Replace(b.Op, "alltoall", "all_to_all", 1), "_", "-"))
		key := fmt.Sprint(b.Op, b.Size, b.Ranks)
		if err != nil || seen[key] {
			continue
		}
		seen[key] = true
		m := models[b.Ranks]
		if m == nil {
			if m, err = tune.NewNCCL(c.Graph, c.Graph.First(topo.GPU, b.Ranks), c.Catalog, tune.NCCLOptions{}); err != nil {
				continue
			}
			models[b.Ranks] = m
		}
		p := m.Predict(op, unit.Bytes(b.Size))
		out = append(out, doctor.Expectation{Op: op.String(), Ranks: b.Ranks, Size: b.Size, Bus: float64(p.BusBW) / float64(unit.GBps),
			Why: fmt.Sprintf("%s %s on %s", p.Algo, p.Proto, c.Name)})
	}
	return out
}

func printCatalogue(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, doctor.Catalogue)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tLAYER\tSEVERITY\tSURE\tSEEN BY")
	for _, l := range doctor.Layers {
		for _, e := range doctor.Catalogue {
			if e.Layer == l {
				fmt.Fprintf(t, "%s\t%s\t%s\t%.0f%%\t%s\n", e.ID, e.Layer, e.Severity, e.Confidence*100, e.Signal)
			}
		}
	}
	return t.Flush()
}

// measuredText says how a finding did on labelled cases.
func measuredText(e *doctor.Entry) string {
	if e.Measured == nil {
		return "no labelled case yet"
	}
	return fmt.Sprintf("right in %d of %s", e.Measured.Right, count(e.Measured.Cases, "labelled case"))
}

func newDoctorExplain() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "explain ID",
		Short:   "Explain one finding: what it means, how to confirm it, how to fix it",
		Long:    `Print what a finding means, how it is detected, how sure it is and what to do.`,
		Example: `  weft doctor explain gpudirect-acs`,
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var ids []cobra.Completion
			for _, e := range doctor.Catalogue {
				ids = append(ids, cobra.CompletionWithDesc(e.ID, e.Title))
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			w := cmd.OutOrStdout()
			e, err := doctor.Explain(args[0])
			if cause, fix, ok := watch.Explain(args[0]); err != nil && ok { // of an alert
				if asJSON {
					return printJSON(w, map[string]string{"id": args[0], "cause": cause, "fix": fix})
				}
				_, err := fmt.Fprintf(w, "%s\n\ncause  %s\ndo     %s\n", args[0], cause, fix)
				return err
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(w, e)
			}
			fmt.Fprintf(w, "%s: %s\n\n", e.ID, e.Title)
			t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
			for _, row := range [][2]string{{"seen by", e.Signal}, {"cause", e.Cause}, {"do", e.Fix}, {"to be certain", e.Confirm},
				{"not to be confused with", e.Guard},
				{"severity", e.Severity.String()}, {"sure", fmt.Sprintf("%.0f%%", e.Confidence*100)}, {"measured", measuredText(e)},
				{"layer", e.Layer}} {
				if row[1] != "" {
					fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
				}
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// printReport writes the page: verdict, findings with evidence, what is unknown, what to run next.
func printReport(w io.Writer, r *doctor.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Verdict)
	if h := r.Hang; h != nil {
		fmt.Fprintf(&b, "\nHang\n")
		for _, why := range h.Why {
			fmt.Fprintf(&b, "  %s\n", why)
		}
	}
	for _, level := range []doctor.Severity{doctor.Critical, doctor.Warning, doctor.Info} {
		for i := range r.Findings {
			if f := &r.Findings[i]; f.Severity == level {
				printFinding(&b, f)
			}
		}
	}
	if len(r.Next) > 0 {
		fmt.Fprintf(&b, "\nNext\n")
		t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		for _, s := range r.Next {
			fmt.Fprintf(t, "  %s\t%s\t%s\n", s.Layer, s.Command, s.Why)
		}
		t.Flush()
	}
	if len(r.Unknown) > 0 {
		fmt.Fprintf(&b, "\nUnknown\n")
		for _, u := range r.Unknown {
			fmt.Fprintf(&b, "  %s\n", u)
		}
	}
	printFiles(&b, r)
	_, err := io.WriteString(w, b.String())
	return err
}

// printFinding writes a finding with the first four lines of evidence and six consequences.
func printFinding(b *strings.Builder, f *doctor.Finding) {
	who := f.Subject.String()
	if who != "" {
		who = ": " + who
	}
	fmt.Fprintf(b, "\n%s  %s (%s, %.0f%% sure)%s\n", strings.ToUpper(f.Severity.String()), f.Title, f.ID, f.Confidence*100, who)
	if f.Job != "" {
		fmt.Fprintf(b, "  of       %s\n", f.Job)
	}
	if f.Since != "" {
		fmt.Fprintf(b, "  since    %s\n", f.Since)
	}
	for _, at := range f.Where {
		fmt.Fprintf(b, "  where    %s\n", at)
	}
	fmt.Fprintf(b, "  cause    %s\n  do       %s\n", f.Cause, f.Fix)
	if f.Confirm != "" {
		fmt.Fprintf(b, "  certain  %s\n", f.Confirm)
	}
	for i, e := range f.Evidence {
		if i == 4 {
			fmt.Fprintf(b, "  seen     ... and %s\n", count(len(f.Evidence)-4+f.More, "more line"))
			break
		}
		fmt.Fprintf(b, "  seen     %s\n", e)
	}
	for i, c := range f.Consequences {
		if i == 6 {
			fmt.Fprintf(b, "  follows  ... and %d more\n", len(f.Consequences)-6)
			break
		}
		fmt.Fprintf(b, "  follows  %s\n", c)
	}
}

// printFiles says which files were read, which were not, and what is missing in those that were; eight lines of each.
func printFiles(b *strings.Builder, r *doctor.Report) {
	if len(r.Unread) > 0 {
		fmt.Fprintf(b, "\nTold nothing\n")
	}
	for i, u := range r.Unread {
		if i == 8 {
			fmt.Fprintf(b, "  ... and %s, all in --json\n", count(len(r.Unread)-8, "more file"))
			break
		}
		fmt.Fprintf(b, "  %s: %s\n", u.Path, u.Why)
	}
	fmt.Fprintf(b, "\nRead: %s\n", kinds(r.Files))
	notes := 0
	for _, f := range r.Files {
		for _, n := range f.Notes {
			if n.Kind == doctor.Unread {
				continue // said above
			}
			if notes++; notes <= 8 {
				fmt.Fprintf(b, "  %s: %s\n", f.Path, n.Text)
			}
		}
	}
	if notes > 8 {
		fmt.Fprintf(b, "  ... and %s, all in --json\n", count(notes-8, "more note"))
	}
}

// kinds counts files by what they are.
func kinds(files []doctor.File) string {
	n := map[string]int{}
	var order []string
	for _, f := range files {
		if n[f.Kind] == 0 {
			order = append(order, f.Kind)
		}
		n[f.Kind]++
	}
	slices.Sort(order)
	var parts []string
	for _, k := range order {
		parts = append(parts, fmt.Sprintf("%d %s", n[k], k))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
