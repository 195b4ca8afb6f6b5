package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/lab"
)

// lookTwice looks at a lab again after some time: rates are what was counted in between.
func lookTwice(ctx context.Context, i *lab.Info, over time.Duration) (*lab.State, error) {
	before, err := i.Look(nil)
	if err != nil {
		return nil, finding{err}
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(over):
	}
	s, err := i.Look(before)
	if err != nil {
		return nil, finding{err}
	}
	return s, nil
}

func newLabShow() *cobra.Command {
	var file, listen string
	var over time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a running lab's ports, rates and faults as text, a picture or a live page",
		Example: `  weft lab show lab
  weft lab show lab -o lab.svg
  weft lab show lab --listen 127.0.0.1:7080`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: labNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if over <= 0 {
				return fmt.Errorf("--over %s; want a time above 0", over)
			}
			i, err := lab.Find(args[0])
			if err != nil {
				return finding{err}
			}
			if err := i.Enter(); err != nil {
				return finding{err}
			}
			if listen != "" {
				return serveLab(cmd, i, listen)
			}
			s, err := lookTwice(cmd.Context(), i, over)
			if err != nil {
				return err
			}
			switch {
			case file != "":
				return output(cmd, file, func(w io.Writer) error { return s.Draw(w) })
			case asJSON:
				return printJSON(cmd.OutOrStdout(), s)
			}
			s.Print(cmd.OutOrStdout())
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "write a picture, `FILE`.svg")
	cmd.Flags().StringVar(&listen, "listen", "", "serve a page that shows the lab live at `ADDRESS`, until Ctrl-C")
	cmd.Flags().DurationVar(&over, "over", time.Second, "`TIME` over which rates are measured")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// serveLab serves the page of a lab until it is told to end.
func serveLab(cmd *cobra.Command, i *lab.Info, listen string) error {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", listen, err)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), ending()...)
	defer stop()
	s := &http.Server{Handler: lab.Page(func() (*lab.State, error) { return i.Look(nil) }), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	fmt.Fprintf(cmd.OutOrStdout(), "page  http://%s\n", ln.Addr())
	if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
