package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/observe/watch/drill"
	"github.com/weft-fabric/weft/observe/watch/load"
	"github.com/weft-fabric/weft/run/launch"
)

// watchLoad are the flags of weft watch load.
type watchLoad struct {
	hosts, series, connections int
	every, length              time.Duration
	ranks, keep, asJSON, fault bool
	cluster, listen            string
}

// newWatchLoad measures a server under the reports of a cluster that does not exist.
func newWatchLoad() *cobra.Command {
	var f watchLoad
	cmd := &cobra.Command{
		Use:    "load",
		Hidden: true,
		Short:  "Measure a server: reports of hosts that do not exist",
		Long: `Start a server of 'weft watch' and let a generator report for a cluster: processor time
and memory of the server, the delay from the report of a lost link to its incident,
and how long the page takes to answer. --keep leaves it running for people to look at.`,
		Example: `  weft watch load --hosts 10000 --series 200 --every 10s --for 60s`,
		Args:    cobra.NoArgs,
		RunE:    f.run,
	}
	s := cmd.Flags()
	s.IntVar(&f.hosts, "hosts", 10000, "hosts")
	s.IntVar(&f.series, "series", 200, "series of a host")
	s.IntVar(&f.connections, "connections", 256, "connections over which hosts report")
	s.DurationVar(&f.every, "every", 10*time.Second, "`TIME` between reports of a host")
	s.DurationVar(&f.length, "for", time.Minute, "`TIME` to measure")
	s.BoolVar(&f.ranks, "ranks", false, "hosts have eight ranks each")
	s.BoolVar(&f.keep, "keep", false, "go on until Ctrl-C")
	s.BoolVar(&f.fault, "faults", false, "a lost link, a late rank and a slow port")
	s.BoolVar(&f.asJSON, "json", false, "print as JSON")
	s.StringVar(&f.cluster, "cluster", "", "`CLUSTER` file for the server")
	s.StringVar(&f.listen, "listen", "", "`ADDRESS` of the page; default: a free one")
	return cmd
}

func (f *watchLoad) run(cmd *cobra.Command, _ []string) error {
	if f.hosts < 1 || f.series < 1 || f.connections < 1 || f.every < time.Second || f.length < f.every {
		return errors.New("at least 1 host, 1 series, 1 connection, --every 1s, and --for no shorter than that")
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	dir, remove, err := launch.TempDir("load")
	if err != nil {
		return err
	}
	defer remove()
	token, err := launch.NewToken()
	if err != nil {
		return err
	}
	var addr [2]string
	for i := range addr {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addr[i] = l.Addr().String()
		l.Close()
	}
	if f.listen != "" {
		addr[0] = f.listen
	}
	args := []string{"watch", "--listen", addr[0], "--reports", addr[1], "--dir", dir, "--quiet"}
	if f.cluster != "" {
		args = append(args, "--cluster", f.cluster)
	}
	server := exec.CommandContext(ctx, exe, args...)
	server.Env = append(os.Environ(), "WEFT_TOKEN="+token, "GOMAXPROCS=2")
	server.Stderr = cmd.ErrOrStderr()
	server.WaitDelay = 5 * time.Second
	server.Cancel = func() error { return server.Process.Signal(syscall.SIGTERM) }
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Wait()
	defer server.Process.Signal(syscall.SIGTERM)
	client, scheme, err := reportClient(token, "token")
	if err != nil {
		return err
	}
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = f.connections + 8 // hosts keep their connections
	if err := awaitListener(addr[1]); err != nil {
		return err
	}
	w := load.New(f.hosts, f.series, f.every.Seconds(), 1, float64(time.Now().Add(-time.Hour).UnixNano())/1e9)
	w.Ranks = f.ranks
	if f.fault {
		w.Down, w.Late, w.Slow = f.hosts/7, 41, f.hosts/3
	}
	r, err := w.Run(ctx, load.Target{Client: client, Reports: scheme + "://" + addr[1], Page: "http://" + addr[0], PID: server.Process.Pid},
		f.length, f.connections)
	if err != nil && ctx.Err() == nil {
		return finding{err}
	}
	if f.asJSON {
		return printJSON(cmd.OutOrStdout(), r)
	}
	fmt.Fprintf(cmd.OutOrStdout(), `hosts                 %d with %d series each, every %g s: %.0f samples a second
reports               %d in %.0f s, %d failed, the last one %.2f s late
server, processor     %.2f cores
server, memory        %.0f MB at most
delay to verdict      %.1f s
page answers          %.1f ms (median), %.1f ms (99%%), %.1f ms at most; the view has %d bytes
`, r.Hosts, r.Series, r.Every, float64(r.Hosts*r.Series)/r.Every, r.Reports, r.Seconds, r.Failed, r.Behind, r.Cores, float64(r.Memory)/1e6, r.Verdict, r.PageP50, r.PageP99, r.PageMax, r.ViewSize)
	if f.keep {
		fmt.Fprintf(cmd.OutOrStdout(), "page http://%s until Ctrl-C\n", addr[0])
		_, err = w.Run(ctx, load.Target{Client: client, Reports: scheme + "://" + addr[1], Page: "http://" + addr[0], PID: server.Process.Pid},
			24*time.Hour, f.connections)
		if err != nil && ctx.Err() == nil {
			return finding{err}
		}
	}
	return nil
}

// awaitListener waits until a server listens.
func awaitListener(addr string) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return finding{fmt.Errorf("the server does not listen: %w", err)}
		}
	}
}

// newWatchPatient is the program of a rank in drills.
func newWatchPatient() *cobra.Command {
	return &cobra.Command{Use: "patient", Hidden: true, Short: "A rank that drills break", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			if err := drill.Patient(ctx); err != nil {
				return finding{err}
			}
			return nil
		}}
}

// newWatchDrills breaks real ranks and prints what was named.
func newWatchDrills() *cobra.Command {
	var o drill.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:    "drills",
		Hidden: true,
		Short:  "Break ranks on purpose, and see whether they are named",
		Long: `Start ranks of a job as processes, watch them, break one of them in every way there is,
and print which faults were named, whether the right rank was, and after how many
seconds; then let the job run undisturbed and count false alarms.`,
		Example: `  weft watch drills --trials 5 --healthy 10m`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			o.Program, o.Log = []string{exe, "watch", "patient"}, cmd.ErrOrStderr()
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			t, err := drill.Run(ctx, o)
			if err != nil && !errors.Is(err, context.Canceled) {
				return finding{err}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), t)
			}
			return t.Markdown(cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntVar(&o.Trials, "trials", 3, "times that each fault is injected")
	cmd.Flags().IntVar(&o.Ranks, "ranks", 4, "ranks of the job")
	cmd.Flags().DurationVar(&o.Healthy, "healthy", 5*time.Minute, "`TIME` of undisturbed running")
	cmd.Flags().IntVar(&o.Hogs, "hogs", 0, "`NUMBER` of busy processes next to the undisturbed ranks")
	cmd.Flags().StringSliceVar(&o.Faults, "faults", nil, "`NAMES` of faults, or none; default: all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
