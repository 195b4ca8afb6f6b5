package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/app/internal/studio/engine"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/unit"
)

// studioFlags is what 'studio' is asked.
type studioFlags struct {
	listen, live, out, engine, memory string
	gpus                              int
	limit                             time.Duration
}

func newStudio() *cobra.Command {
	var f studioFlags
	cmd := &cobra.Command{
		Use:   "studio [CLUSTER]",
		Short: "Open one page to design, simulate, plan and watch a cluster",
		Long: `Serve a page on this machine: the cluster file and its picture side by side, with
live figures. Break a part by clicking it, simulate a collective and see its messages
move, compare two runs on one clock, see the cut that bounds them, plan a training run
and follow a real one. What the page shows is in its address: a link shares it.

CLUSTER is a cluster file or a preset; without it the page opens a sample.

--live passes the page of 'weft up' or 'weft watch' on, which is drawn on the same
picture. A page that listens on another address than this host's own asks for a token,
which is printed as part of the address.

-o FILE writes the page as one HTML file with the engine inside, as WebAssembly. It
opens without a server and without a network, on any machine. Writing it takes the go
tool and weft's source (a checkout around the current folder), or --engine DIR with an
engine that 'weft studio engine' compiled before.

docs/how-to/studio.md has the keys of the page and its requests.`,
		Example: `  weft studio
  weft studio examples/rail-1k.yaml
  weft studio --live http://127.0.0.1:7070
  weft studio examples/rail-1k.yaml -o rail-1k.html`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
		RunE:              f.run,
	}
	s := cmd.Flags()
	s.StringVar(&f.listen, "listen", "127.0.0.1:7075", "`ADDRESS` of the page; another port if this one is taken and the flag is not given")
	s.StringVar(&f.live, "live", "", "`URL` of a page of 'weft up' or 'weft watch' to follow")
	s.StringVarP(&f.out, "output", "o", "", "write the page with its engine to `FILE` instead of serving it")
	s.StringVar(&f.engine, "engine", "", "`DIR` with a compiled engine, for -o")
	s.IntVar(&f.gpus, "max-gpus", engine.Default().GPUs, "most `GPUS` of a cluster that the page may ask about")
	s.DurationVar(&f.limit, "limit", engine.Default().Time, "most `TIME` for an answer")
	s.StringVar(&f.memory, "memory", engine.Default().Memory.String(), "most `SIZE` of a simulation's records")
	cmd.AddCommand(newStudioGallery(), newStudioEngine())
	return cmd
}

func (f *studioFlags) limits() (engine.Limits, error) {
	l := engine.Default()
	var err error
	if l.Memory, err = unit.ParseBytes(f.memory); err != nil {
		return l, fmt.Errorf("--memory: %w", err)
	}
	l.GPUs, l.Time = f.gpus, f.limit
	if l.GPUs < 1 || l.Time <= 0 || l.Memory <= 0 {
		return l, fmt.Errorf("--max-gpus %d --limit %s --memory %s: want more than 0 of each", f.gpus, f.limit, f.memory)
	}
	return l, nil
}

// opened is what the page shows first: the text of a file, or of one that names a preset.
func opened(cmd *cobra.Command, args []string) (studio.Open, error) {
	if len(args) == 0 {
		return studio.Open{}, nil
	}
	c, err := loadCluster(cmd, args[0], presetFlags{})
	if err != nil {
		return studio.Open{}, err
	}
	if _, err := os.Stat(args[0]); err != nil {
		return studio.Open{Name: c.Name, Text: fmt.Sprintf("# the preset %s\nname: %s\n\npreset: %s\n", args[0], args[0], args[0])}, nil
	}
	data, err := readInput(cmd, args[0])
	if err != nil {
		return studio.Open{}, err
	}
	if _, err := cluster.Parse(args[0], data, nil); err != nil {
		return studio.Open{}, fmt.Errorf("%s: the page holds one cluster file, and this one reads others or is of another format: %w",
			args[0], err)
	}
	return studio.Open{Name: c.Name, Text: string(data)}, nil
}

func (f *studioFlags) run(cmd *cobra.Command, args []string) error {
	limits, err := f.limits()
	if err != nil {
		return err
	}
	open, err := opened(cmd, args)
	if err != nil {
		return err
	}
	switch {
	case f.out != "" && f.live != "":
		return errors.New("--live is for a page that is served; leave it out with -o")
	case f.out != "":
		return f.write(cmd, open)
	}
	live, err := liveAddress(f.live)
	if err == nil && f.engine != "" { // rather now than when somebody exports a page
		_, err = compiled(cmd.Context(), f.engine)
	}
	if err != nil {
		return err
	}
	s := &studio.Server{Engine: engine.New(limits), Limits: limits, Open: open}
	s.Compiled = once(func(ctx context.Context) (*studio.Compiled, error) { return compiled(ctx, f.engine) })
	if live != nil {
		s.Live = studio.Follow(live)
	}
	return f.serve(cmd, s)
}

// write writes the page as one file.
func (f *studioFlags) write(cmd *cobra.Command, open studio.Open) error {
	c, err := compiled(cmd.Context(), f.engine)
	if err != nil {
		return err
	}
	return output(cmd, f.out, func(w io.Writer) error { return studio.File(w, c, open) })
}

// once keeps what a function gave when it first succeeded. Others wait meanwhile.
func once[T any](f func(context.Context) (T, error)) func(context.Context) (T, error) {
	var mu sync.Mutex
	var kept T
	done := false
	return func(ctx context.Context) (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return kept, nil
		}
		got, err := f(ctx)
		if err == nil {
			kept, done = got, true
		}
		return got, err
	}
}

// liveAddress reads --live; nil where there is none.
func liveAddress(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--live %q: want the address of a page, like http://127.0.0.1:7070", text)
	}
	return u, nil
}

// compiled is the engine of --engine, or one that is compiled now.
func compiled(ctx context.Context, dir string) (*studio.Compiled, error) {
	if dir != "" {
		c, err := studio.ReadCompiled(dir)
		if err != nil {
			return nil, fmt.Errorf("--engine: %w; 'weft studio engine -o DIR' writes one", err)
		}
		return c, nil
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return studio.Compile(ctx, here)
}

// serve serves the page. The default port gives way to a free one, a given one does not. At an address that others can
// reach, the page needs a token, which is part of the printed link.
func (f *studioFlags) serve(cmd *cobra.Command, s *studio.Server) error {
	ln, err := net.Listen("tcp", f.listen)
	if err != nil && !cmd.Flags().Changed("listen") {
		ln, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return finding{fmt.Errorf("--listen %s: %w", f.listen, err)}
	}
	page := "http://" + ln.Addr().String() + "/"
	if a, ok := ln.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		s.Token = rand.Text()
		page += "#t=" + s.Token
	}
	fmt.Fprintf(cmd.OutOrStdout(), "page  %s\n", strings.Replace(page, "[::]", "localhost", 1))
	ctx, stop := signal.NotifyContext(cmd.Context(), ending()...)
	defer stop()
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return finding{err}
	}
	return nil
}

func newStudioEngine() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "engine -o DIR", Short: "Compile the engine that pages written by -o carry",
		Long: `Compile the engine to WebAssembly and write it to a folder, with the script of Go's
that starts it. 'weft studio -o FILE --engine DIR' then needs neither the go tool nor
weft's source.`,
		Example: `  weft studio engine -o engine`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return errors.New("say where to write it: -o DIR")
			}
			c, err := compiled(cmd.Context(), "")
			if err != nil {
				return err
			}
			if err := c.Write(dir); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s, %s\n", dir, unit.Bytes(len(c.Wasm)))
			return nil
		},
	}
	cmd.Flags().StringVarP(&dir, "output", "o", "", "`DIR` to write it to")
	return cmd
}
