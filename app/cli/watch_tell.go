package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/observe/agent"
)

// newWatchTell is the other end of schedulers: an epilog or a cron job pipes what they recorded into it.
func newWatchTell() *cobra.Command {
	var reports, tls string
	cmd := &cobra.Command{
		Use:   "tell [FILE]",
		Short: "Tell a 'weft watch' server how a scheduler says jobs ended",
		Long: `Read what a scheduler recorded and send it to a server: 'sacct -P', 'scontrol show job'
or 'kubectl get pods -o json', from a file or standard input. The scheduler knows who
cancelled a job, that its time was over or that a node failed. Run it from Slurm's
EpilogSlurmctld, or after a Kubernetes job. WEFT_TOKEN is the server's secret.`,
		Example: `  scontrol show job $SLURM_JOB_ID | weft watch tell --reports head:9411
  kubectl get pods -l job-name=train -o json | weft watch tell`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var in io.Reader = cmd.InOrStdin()
			if len(args) > 0 {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			r, err := agent.Scheduled(in)
			if err != nil {
				return err
			}
			client, scheme, err := reportClient(os.Getenv("WEFT_TOKEN"), tls)
			if err != nil {
				return fmt.Errorf("--tls %s: %w", tls, err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 20*time.Second)
			defer cancel()
			if _, err := agent.HTTP(client, scheme+"://"+reports)(ctx, r); err != nil {
				return finding{fmt.Errorf("--reports %s: %w", reports, err)}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "told %s of %d ends\n", reports, len(r.Launches))
			return nil
		},
	}
	cmd.Flags().StringVar(&reports, "reports", "localhost:9411", "`ADDRESS` at which agents report")
	cmd.Flags().StringVar(&tls, "tls", "token", "certificates: token, or a `DIR` with ca.pem, cert.pem and key.pem")
	return cmd
}
