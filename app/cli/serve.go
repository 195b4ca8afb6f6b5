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
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/route"
)

func newServe() *cobra.Command {
	var o route.Options
	var listen, policy, long string
	cmd := &cobra.Command{
		Use:   "serve ENGINE...",
		Short: "Route requests of OpenAI's API to the engine that has the beginning of the prompt",
		Long: `Stand in front of several engines with OpenAI's API (vLLM, SGLang, 'weft up --serve') and send each request to the
engine for which it is cheapest: prompts that begin alike go to one engine, whose KV cache has the beginning, until that
engine has too much to do. The router compares text, needs no tokenizer, and asks engines nothing but their health.

With --cache the engines are vLLM with weft.vllm on that cache. The router then asks an engine for a prompt's tokens
(/tokenize) and the cache for their blocks: what another engine can load does not hold a prompt at a busy one.
WEFT_TOKEN is the cache's, and WEFT_KV_TLS a folder with certificates if it serves HTTPS.

With --prefill other engines read the prompts that the answering engine has not seen, from --prefill-from on, and it
loads their KV blocks: vLLM's kv_transfer_params (NIXL), or a shared cache. Where none can, it reads the prompt itself.
SGLang's bootstrap protocol is not supported. Requests go to engines that list their model.

A request that fails before its first token goes to another engine, at most three in all. If an engine ends in the middle
of an answer, the stream ends with an error event. /health and /metrics show engines, retries and known prompt bytes.
Keys are passed on to the engines, which check them.`,
		Example: `  weft serve http://10.0.0.1:8000 http://10.0.0.2:8000
  weft serve --cache 10.0.0.9:7080 http://10.0.0.1:8000 http://10.0.0.2:8000
  weft serve --prefill http://10.0.0.3:8000 http://10.0.0.1:8000 http://10.0.0.2:8000
  weft serve --policy round-robin http://10.0.0.1:8000 http://10.0.0.2:8000`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no ENGINE given; want at least one address like http://127.0.0.1:8000")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.Engines, o.Policy = args, route.Policy(policy)
			o.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			size, err := unit.ParseBytes(long)
			if o.Long = int(size); err != nil || o.Long < 1 {
				return fmt.Errorf("--prefill-from %q: want a size like 2KiB", long)
			}
			if o.Health <= 0 {
				return fmt.Errorf("--health %s: want more than nothing", o.Health)
			}
			if _, err := hostPort(listen, 0); err != nil {
				return fmt.Errorf("--listen %w", err)
			}
			if o.Cache != "" {
				if _, err := hostPort(o.Cache, 1); err != nil {
					return fmt.Errorf("--cache %w", err)
				}
			}
			o.Token = os.Getenv("WEFT_TOKEN")
			if o.TLS, err = kvTLS(); err != nil {
				return err
			}
			return serveRouter(cmd, listen, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8080", "`ADDRESS` to serve at")
	f.StringVar(&policy, "policy", string(route.Prefix), "how an engine is chosen: prefix or round-robin")
	f.StringSliceVar(&o.Prefill, "prefill", nil, "`ENGINE` that reads long prompts for the others; repeat it for several")
	f.StringVar(&long, "prefill-from", "2KiB", "`SIZE` of a prompt's unseen text from which another engine reads it")
	f.StringVar(&o.Cache, "cache", "", "`ADDRESS` of the cache that the engines share ('weft kv serve')")
	f.DurationVar(&o.Health, "health", time.Second, "`TIME` between two looks at an engine's health")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions([]string{string(route.Prefix), string(route.RoundRobin)},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func serveRouter(cmd *cobra.Command, listen string, o route.Options) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := route.New(ctx, o)
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return finding{fmt.Errorf("--listen %s: %w", listen, err)}
	}
	server := &http.Server{Handler: r.Handler(), ReadHeaderTimeout: 5 * time.Second}
	s := r.Status()
	fmt.Fprintf(cmd.OutOrStdout(), "api         http://%s/v1\nengines     %d of %d up, policy %s\n", l.Addr(), s.Up, len(o.Engines), s.Policy)
	if len(o.Prefill) > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "prefill     engines: %d, for prompts with %v and more to read\n", len(o.Prefill), unit.Bytes(o.Long))
	}
	for _, e := range s.Engines {
		if !e.Up {
			role := ""
			if e.Prefill {
				role = " (prefill)"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "down        %s%s: %s\n", e.Engine, role, e.Error)
		}
	}
	context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if server.Shutdown(end) != nil { // answers that take longer are cut
			_ = server.Close()
		}
	})
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return finding{err}
	}
	return nil
}
