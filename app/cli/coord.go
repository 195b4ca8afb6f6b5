package cli

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/transport/witness"
)

func newCoord() *cobra.Command {
	var c coord.ServerConfig
	var tie string
	cmd := &cobra.Command{
		Use:   "coord --dir DIR --listen ADDRESS",
		Short: "Run a stand-alone coordinator for elastic jobs",
		Long: `Run the coordinator where elastic jobs meet: an embedded etcd with its state in DIR.
Restarted on the same DIR it continues, and jobs run on meanwhile. Three of them
(--name, --peers) survive the loss of one.

With --witness it also serves as a witness: when a network splits a job in two halves,
the ranks ask it which half continues (WEFT_QUORUM=witness:ADDRESS).

Clients need the same WEFT_TOKEN. Without a token the address must be local to this
host.`,
		Example: `  WEFT_TOKEN=secret weft coord --dir /var/lib/weft --listen 10.0.0.1:2379
  WEFT_TOKEN=secret weft coord --dir a --listen 10.0.0.1:2379 --name a --peers a=10.0.0.1:2380,b=10.0.0.2:2380,c=10.0.0.3:2380
  WEFT_TOKEN=secret weft coord --dir /var/lib/weft --listen 10.0.0.1:2379 --witness 10.0.0.1:2381`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.Dir == "" {
				return errors.New("--dir is not given: name the folder that keeps the coordinator's state, like --dir /var/lib/weft")
			}
			c.Token = os.Getenv("WEFT_TOKEN")
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			s, err := coord.Serve(ctx, c)
			if err != nil {
				return err
			}
			if tie != "" {
				w, err := witness.Serve(witness.ServerConfig{Listen: tie, Dir: c.Dir, Token: c.Token})
				if err != nil {
					return errors.Join(fmt.Errorf("--witness %s: %w", tie, err), s.Close())
				}
				defer w.Close()
				fmt.Fprintf(cmd.OutOrStdout(), "witness at %s: give ranks WEFT_QUORUM=witness:%[1]s\n", w.Address())
			}
			fmt.Fprintf(cmd.OutOrStdout(), "serving at %s, state in %s\n", s.Address(), c.Dir)
			select {
			case err = <-s.Err():
			case <-ctx.Done():
			}
			if e := s.Close(); err == nil {
				err = e
			}
			if err != nil {
				return finding{err}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Dir, "dir", "", "`DIR` of the state; made if it is not there")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:2379", "`ADDRESS` for clients, host:port")
	f.StringVar(&c.Job, "job", "", "`NAME` of the only job that is served; default: any")
	f.StringVar(&c.Name, "name", "", "`NAME` of this coordinator among several")
	f.StringSliceVar(&c.Peers, "peers", nil, "`NAME=HOST:PORT` of every coordinator, this one included")
	f.StringVar(&c.TLS.Cert, "cert", "", "`FILE` with this server's certificate, instead of those that follow from the token")
	f.StringVar(&c.TLS.Key, "key", "", "`FILE` with the key of that certificate")
	f.StringVar(&c.TLS.CA, "ca", "", "`FILE` with the authority of clients' certificates")
	f.StringVar(&tie, "witness", "", "`ADDRESS`, host:port, at which it serves as a witness; default: none")
	f.BoolVar(&c.NoSync, "no-sync", false, "do not wait for the disk: state survives the process, not the host")
	return cmd
}
