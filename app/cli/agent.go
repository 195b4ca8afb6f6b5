package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/observe/agent"
	"github.com/weft-fabric/weft/observe/doctor"
)

func newAgent() *cobra.Command {
	c := agent.Default()
	var f struct {
		listen, cluster, report, tls string
		once                         bool
		preset                       presetFlags
	}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Collect this host's metrics, kernel log and job states, and serve or send them",
		Long: `Sample this host every few seconds: InfiniBand and RoCE ports, interfaces, PCIe links
and errors, GPUs through NVIDIA's library, the kernel log, and the ranks of jobs.
Counters are judged by their growth. States are good, bad or unknown and clear after
a quiet period.

/metrics uses the names of node_exporter and dcgm-exporter where they exist, and weft_
names otherwise. /state is the same as JSON. /healthz fails when samples are old.

With --report the agent sends a 'weft watch' server the state of its ranks every
--pulse: processes, memory, connection speeds, and collective progress where ranks
report it (WEFT_WATCH, NCCL Inspector, PyTorch's flight records). Both need the same
WEFT_TOKEN. Without --report nothing is sent.`,
		Example: `  weft agent --listen :9410
  weft agent --once
  weft agent --report localhost:9411 --listen localhost:9410
  weft agent --cluster examples/rail-1k.yaml --interval 30s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Interval < time.Second {
				return fmt.Errorf("--interval %s: at least 1s, as NICs keep counters for that long", c.Interval)
			}
			if f.cluster != "" {
				site, err := loadCluster(cmd, f.cluster, f.preset)
				if err != nil {
					return err
				}
				c.Site = doctor.NewSite(site.Graph)
			}
			c.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			if f.report != "" {
				client, scheme, err := reportClient(os.Getenv("WEFT_TOKEN"), f.tls)
				if err != nil {
					return fmt.Errorf("--report: %w", err)
				}
				c.Send = agent.HTTP(client, scheme+"://"+f.report)
			}
			a := agent.New(c)
			if f.once {
				a.Sample(time.Now())
				return a.WriteMetrics(cmd.OutOrStdout(), time.Now())
			}
			l, err := net.Listen("tcp", f.listen)
			if err != nil {
				return finding{fmt.Errorf("--listen %s: %w", f.listen, err)}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			server := &http.Server{Handler: a.Handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
				MaxHeaderBytes: 16 << 10}
			go a.Run(ctx)
			go func() {
				<-ctx.Done()
				end, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				server.Shutdown(end)
			}()
			fmt.Fprintf(cmd.OutOrStdout(), "agent of %s: http://%s/metrics, /state, /healthz\n", c.Host, l.Addr())
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return finding{err}
			}
			return nil
		},
	}
	s := cmd.Flags()
	s.StringVar(&f.listen, "listen", "localhost:9410", "`ADDRESS` of the HTTP server")
	s.StringVar(&f.report, "report", "", "`ADDRESS` of a server of 'weft watch' to report to")
	s.StringVar(&f.tls, "tls", "token", "certificates for --report: token, or a `DIR` with ca.pem, cert.pem and key.pem")
	s.DurationVar(&c.Pulse, "pulse", time.Second, "`TIME` between looks at ranks; a large cluster's server may ask for longer ones")
	s.StringVar(&f.cluster, "cluster", "", "`CLUSTER` file or preset: label each port with its position")
	s.DurationVar(&c.Interval, "interval", c.Interval, "`TIME` between samples")
	s.StringVar(&c.Host, "host", c.Host, "`NAME` to report under")
	s.StringVar(&c.Root, "root", "", "`DIR` with a copy of another host's sys and proc, to try it out")
	s.BoolVar(&f.once, "once", false, "sample once, print metrics and end; for a textfile collector")
	f.preset.register(cmd)
	cmd.AddCommand(newAgentCost())
	return cmd
}
