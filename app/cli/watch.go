package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/server"
	"github.com/weft-fabric/weft/predict/tune"
	"github.com/weft-fabric/weft/run/transport/auth"
	"golang.org/x/sys/unix"
)

// watchFlags are those of everything that judges.
type watchFlags struct {
	cluster string
	preset  presetFlags
	hang    time.Duration
}

func (f *watchFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.cluster, "cluster", "", "`CLUSTER` file or preset: rails, leaves and ports are named, and collectives are predicted")
	s.DurationVar(&f.hang, "hang", 30*time.Second, "`TIME` without a finished operation after which ranks that wait hang")
	f.preset.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
}

// config makes the rules' settings. With a cluster file ports have places, and times are compared with predictions.
func (f *watchFlags) config(cmd *cobra.Command) (watch.Config, error) {
	c := watch.Config{Title: "cluster", Hang: f.hang.Seconds()}
	if f.hang < time.Second {
		return c, fmt.Errorf("--hang %s: at least 1s, as ranks report every second", f.hang)
	}
	if f.cluster == "" {
		return c, nil
	}
	site, err := loadCluster(cmd, f.cluster, f.preset)
	if err != nil {
		return c, err
	}
	c.Title, c.Site = site.Name, doctor.NewSite(site.Graph)
	c.Predict = predictor(site)
	return c, nil
}

// ncclOn is NCCL on the first GPUs of a cluster, nil where its model does not know them.
func ncclOn(c *cluster.Cluster, ranks int) *tune.NCCL {
	m, err := tune.NewNCCL(c.Graph, c.Graph.First(topo.GPU, ranks), c.Catalog, tune.NCCLOptions{})
	if err != nil {
		return nil
	}
	return m
}

// secondsOf is the time of an operation, 0 if there is no model.
func secondsOf(m *tune.NCCL, op sched.Collective, bytes unit.Bytes) float64 {
	if m == nil {
		return 0
	}
	return float64(m.Predict(op, bytes).Time) / float64(unit.Second)
}

// predictor says how long NCCL's operations take on a cluster. Predictions are made one
// after another beside what asks for them: a model of a thousand GPUs takes seconds.
func predictor(c *cluster.Cluster) func(op string, bytes int64, ranks int) (float64, bool) {
	type question struct {
		op    sched.Collective
		bytes int64
		ranks int
	}
	var mu sync.Mutex
	answers := map[question]float64{}
	asked := map[question]bool{}
	queue := make(chan question, 1024)
	work := func() {
		models := map[int]*tune.NCCL{}
		for q := range queue {
			m, known := models[q.ranks]
			if !known {
				m = ncclOn(c, q.ranks)
				models[q.ranks] = m
			}
			took := secondsOf(m, q.op, unit.Bytes(q.bytes))
			mu.Lock()
			answers[q] = took
			mu.Unlock()
		}
	}
	var once sync.Once
	return func(name string, bytes int64, ranks int) (float64, bool) {
		op, err := sched.ParseCollective(strings.ToLower(strings.ReplaceAll(name, "_", "-")))
		if err != nil || ranks < 2 || ranks > c.Graph.Count(topo.GPU) || bytes <= 0 {
			return 0, true
		}
		once.Do(func() { go work() })
		q := question{op, bytes, ranks}
		mu.Lock()
		defer mu.Unlock()
		if x, ok := answers[q]; ok {
			return x, true
		}
		if !asked[q] {
			select {
			case queue <- q:
				asked[q] = true
			default: // asked again later
			}
		}
		return 0, false
	}
}

// watchServe are the flags of weft watch.
type watchServe struct {
	watchFlags
	listen, reports, dir, limit, tls, url string
	quiet                                 bool
	notify, push                          []string
	pushEvery                             time.Duration
}

func newWatch() *cobra.Command {
	var f watchServe
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Watch a cluster: late ranks, slow links, hung jobs, with names",
		Long: `Receive agents' reports ('weft agent --report'), judge them every second, and show what
is wrong: on this terminal, as a page, as JSON and as metrics. --cluster adds the rail,
leaf and switch port of every rank, and compares collectives with the cluster's
prediction, corrected by what it reaches.

Agents and server need the same secret in WEFT_TOKEN; without one they talk on this
host only. The page asks people from other hosts for it as password. The one in
WEFT_READ_TOKEN lets people see the page, and no agent report. Behind a reverse proxy
give --url: people who come through the proxy are asked as well.

--notify sends incidents to Slack, PagerDuty, an OpenTelemetry collector or anything that
takes Alertmanager's webhooks. --push sends the metrics to OpenTelemetry or Prometheus.

--dir stores history within --limit bytes: raw reports, then five-minute means. kill -9
loses the last second. 'weft watch replay' plays it.`,
		Example: `  weft watch --dir /var/lib/weft-watch --cluster examples/rail-1k.yaml
  weft watch --listen localhost:9420 --reports :9411
  weft watch show localhost:9420
  weft watch replay /var/lib/weft-watch
  weft watch export -o monitoring`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return group(cmd, args)
			}
			return nil
		},
		RunE: f.run,
	}
	s := cmd.Flags()
	s.StringVar(&f.listen, "listen", "localhost:9420", "`ADDRESS` of the page")
	s.StringVar(&f.reports, "reports", "localhost:9411", "`ADDRESS` at which agents report")
	s.StringVar(&f.dir, "dir", "", "`DIR` for history; without one nothing is stored")
	s.StringVar(&f.limit, "limit", "4GiB", "`SIZE` that history may take")
	s.StringVar(&f.url, "url", "", "`URL` at which a reverse proxy serves the page, with its path: https://ops.example/weft")
	s.StringVar(&f.tls, "tls", "token", "certificates for agents: token, or a `DIR` with ca.pem, cert.pem and key.pem")
	s.BoolVar(&f.quiet, "quiet", false, "print nothing")
	s.StringArrayVar(&f.notify, "notify", nil,
		"`RECEIVER` of incidents: slack=URL, pagerduty=KEY, otlp=URL or webhook=URL (Alertmanager's form); @FILE reads a value from a file; repeatable")
	s.StringArrayVar(&f.push, "push", nil,
		"`TARGET` of metrics: otlp=URL of an OpenTelemetry collector, remote-write=URL of Prometheus; repeatable")
	s.DurationVar(&f.pushEvery, "push-every", 15*time.Second, "`TIME` between pushes")
	f.register(cmd)
	cmd.AddCommand(newWatchExport(), newWatchShow(), newWatchReplay(), newWatchTell(), newWatchLoad(), newWatchDrills(), newWatchPatient())
	return cmd
}

// pageURL reads the address at which a proxy serves the page; nil for "".
func pageURL(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--url %s is no address of a page; give one like https://ops.example/weft", text)
	}
	return u, nil
}

func (f *watchServe) run(cmd *cobra.Command, _ []string) error {
	wc, err := f.config(cmd)
	if err != nil {
		return err
	}
	var limit unit.Bytes
	if limit, err = unit.ParseBytes(f.limit); err != nil {
		return fmt.Errorf("--limit: %w", err)
	}
	token := os.Getenv("WEFT_TOKEN")
	out := cmd.OutOrStdout()
	file, isFile := out.(*os.File)
	screen := !f.quiet && isFile && terminal(file) != nil
	at, err := pageURL(f.url)
	if err != nil {
		return err
	}
	deliveries, err := f.deliveries(cmd)
	if err != nil {
		return err
	}
	c := server.Config{Watch: wc, Dir: f.dir, Limit: int64(limit), Token: token, Read: os.Getenv("WEFT_READ_TOKEN"), URL: at}
	printed := !screen && !f.quiet
	c.Notice = func(i watch.Incident) {
		if printed {
			fmt.Fprintln(out, noticeLine(i))
		}
		deliveries.notifier.Notice(i)
	}
	c.Log = slog.New(slog.DiscardHandler)
	if f.dir != "" {
		if err := os.MkdirAll(f.dir, 0o755); err != nil {
			return fmt.Errorf("--dir %s: %w; name a folder that can be written to, or leave it out and keep no history", f.dir, err)
		}
	}
	s, err := server.New(c)
	if err != nil {
		return finding{err}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	reports, err := reportListener(f.reports, token, f.tls)
	if err != nil {
		return err
	}
	pages, err := net.Listen("tcp", f.listen)
	if err != nil {
		reports.Close()
		return finding{fmt.Errorf("--listen %s: %w", f.listen, err)}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "page http://%s, agents: weft agent --report %s\n", pages.Addr(), reports.Addr())
	ends := make(chan error, 3)
	a := serveHTTP(s.Reports(), reports, ends)
	b := serveHTTP(s.Pages(), pages, ends)
	go func() { ends <- s.Run(ctx) }()
	deliveries.run(ctx, s)
	if screen {
		go drawScreen(ctx, file, s)
	}
	select {
	case err = <-ends:
		stop()
	case <-ctx.Done():
		err = <-ends
	}
	a()
	b()
	if err != nil {
		return finding{err}
	}
	return nil
}

// reportListener listens for agents. With a token connections are encrypted and both ends
// prove that they know it; without one only this host is served.
func reportListener(addr, token, from string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("--reports %s: %w", addr, err)
	}
	if err := auth.CheckToken(token, host, false); err != nil {
		return nil, fmt.Errorf("--reports %s: %w", addr, err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, finding{fmt.Errorf("--reports %s: %w", addr, err)}
	}
	if token == "" && from == "token" {
		return l, nil
	}
	c, err := auth.Certificates(from, token)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("--tls %s: %w", from, err)
	}
	c = c.Clone()
	c.ClientAuth = tls.RequireAnyClientCert
	return tls.NewListener(l, c), nil
}

// reportClient is the other end of reportListener.
func reportClient(token, from string) (client *http.Client, scheme string, err error) {
	t := &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 2 * time.Minute,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
	if token == "" && from == "token" {
		return &http.Client{Transport: t}, "http", nil
	}
	if t.TLSClientConfig, err = auth.Certificates(from, token); err != nil {
		return nil, "", err
	}
	return &http.Client{Transport: t}, "https", nil
}

func serveHTTP(h http.Handler, l net.Listener, ends chan error) (stop func()) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			ends <- err
		}
	}()
	return func() { s.Close() }
}

func noticeLine(i watch.Incident) string {
	at := time.Unix(0, int64(i.Began*1e9)).Format("15:04:05")
	if i.Ended > 0 {
		return fmt.Sprintf("%s  #%d over after %.0f s: %s", time.Unix(0, int64(i.Ended*1e9)).Format("15:04:05"), i.ID, i.Ended-i.Began, i.Verdict)
	}
	return fmt.Sprintf("%s  #%d %s (%s, %.0f%% sure): %s", at, i.ID, strings.ToUpper(i.Severity.String()), i.Kind, 100*i.Confidence, i.Verdict)
}

// terminal is the size of a terminal; nil if the file is none.
func terminal(f *os.File) *unix.Winsize {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return nil
	}
	return size
}

// drawScreen draws once a second over what was there.
func drawScreen(ctx context.Context, w *os.File, s *server.Server) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		width, height := 100, 40
		if size := terminal(w); size != nil {
			width, height = int(size.Col), int(size.Row)
		}
		rows, _ := s.Rows("", "", 0, max(4, height-30))
		fmt.Fprint(w, "\x1b[H\x1b[2J"+watch.Screen(s.View(), rows, watch.Style{Width: width, Height: height - 1, Color: true}))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// askWatch asks a server of 'weft watch', with the cluster's token as the password.
func askWatch(ctx context.Context, addr, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.TrimPrefix(addr, "http://")+path, nil)
	if err != nil {
		return err
	}
	req.SetBasicAuth("weft", os.Getenv("WEFT_TOKEN"))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return finding{fmt.Errorf("no server of 'weft watch' answers at %s: %w", addr, err)}
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusUnauthorized {
		return finding{fmt.Errorf("%s needs the cluster's token; set WEFT_TOKEN", addr)}
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return finding{fmt.Errorf("%s is not a 'weft watch' server: %w", addr, err)}
	}
	return nil
}

func newWatchShow() *cobra.Command {
	var asJSON, color bool
	var width, height int
	cmd := &cobra.Command{
		Use:   "show [ADDRESS]",
		Short: "Print the current state of a 'weft watch' server",
		Long: `Print a server's screen once, or with --json everything it knows. From another host
WEFT_TOKEN is the password. Exit code 0 if nothing critical is wrong, 1 if something is
or no server answers, 2 for wrong use.`,
		Example: `  weft watch show
  weft watch show localhost:9420 --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			addr := "localhost:9420"
			if len(args) > 0 {
				addr = args[0]
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 20*time.Second)
			defer cancel()
			var v watch.View
			if err := askWatch(ctx, addr, "/api/view", &v); err != nil {
				return err
			}
			if asJSON {
				if err := printJSON(cmd.OutOrStdout(), v); err != nil {
					return err
				}
			} else {
				var t struct{ Rows []watch.Row }
				if err := askWatch(ctx, addr, "/api/table?n=16", &t); err != nil {
					return err
				}
				fmt.Fprint(cmd.OutOrStdout(), watch.Screen(v, t.Rows, watch.Style{Width: width, Height: height, Color: color}))
			}
			if v.Health.State == "bad" {
				return finding{errors.New(v.Health.Verdict)}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	cmd.Flags().BoolVar(&color, "color", false, "colours")
	cmd.Flags().IntVar(&width, "width", 110, "`COLUMNS`")
	cmd.Flags().IntVar(&height, "height", 200, "`LINES` at most")
	return cmd
}

// watchReplay are the flags of weft watch replay.
type watchReplay struct {
	watchFlags
	from, to string
	incident int
	speed    float64
	asJSON   bool
	screen   bool
}

func newWatchReplay() *cobra.Command {
	var f watchReplay
	cmd := &cobra.Command{
		Use:   "replay DIR",
		Short: "Replay a recorded history through the same rules",
		Long: `Play the reports in a 'weft watch --dir' folder and print incidents as they open and
close. Reports are judged anew with this program and these flags, so you can try
another --hang or a cluster file on a past incident. --incident plays a recorded one
with a minute before and after. --speed 1 plays in real time.`,
		Example: `  weft watch replay /var/lib/weft-watch
  weft watch replay /var/lib/weft-watch --incident 12 --speed 5 --screen
  weft watch replay /var/lib/weft-watch --from 2026-11-16T02:00:00Z --to 2026-11-16T03:00:00Z --json`,
		Args: cobra.ExactArgs(1),
		RunE: f.run,
	}
	s := cmd.Flags()
	s.StringVar(&f.from, "from", "", "`TIME` to begin with")
	s.StringVar(&f.to, "to", "", "`TIME` to end with")
	s.IntVar(&f.incident, "incident", 0, "play the incident of this `NUMBER`")
	s.Float64Var(&f.speed, "speed", 0, "simulated seconds per second; 0 for as fast as possible")
	s.BoolVar(&f.asJSON, "json", false, "print the incidents as JSON")
	s.BoolVar(&f.screen, "screen", false, "show the screen")
	f.register(cmd)
	return cmd
}

func (f *watchReplay) run(cmd *cobra.Command, args []string) error {
	c, err := f.config(cmd)
	if err != nil {
		return err
	}
	if _, err := os.Stat(args[0]); err != nil {
		return err
	}
	from, to, err := f.span(args[0])
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	all := []watch.Incident{}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = server.Replay(args[0], c, from, to, func(now float64, m *watch.Machine, news []watch.Incident) bool {
		for _, i := range news {
			if i.Ended == 0 {
				all = append(all, i)
			}
			if !f.asJSON && !f.screen {
				printIncident(out, i)
			}
		}
		if f.screen {
			rows, _ := m.Table("", "", 0, 12)
			fmt.Fprint(out, "\x1b[H\x1b[2J"+watch.Screen(m.View(now), rows, watch.Style{Width: 110, Height: 50, Color: true}))
		}
		if f.speed > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(float64(time.Second) / f.speed)):
			}
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return finding{err}
	}
	if f.asJSON {
		return printJSON(out, map[string]any{"incidents": all})
	}
	if !f.screen {
		fmt.Fprintf(out, "%s\n", count(len(all), "incident"))
	}
	return nil
}

// span is the time to play, in seconds since 1970: from --from to --to, or a minute around the incident.
func (f *watchReplay) span(dir string) (from, to float64, err error) {
	to = math.Inf(1)
	for _, x := range []struct {
		text string
		into *float64
	}{{f.from, &from}, {f.to, &to}} {
		if x.text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, x.text)
		if err != nil {
			return 0, 0, fmt.Errorf("%q is not a time; use for example 2026-11-16T02:00:00Z", x.text)
		}
		*x.into = float64(t.UnixNano()) / 1e9
	}
	if f.incident <= 0 {
		return from, to, nil
	}
	list, _, err := server.Events(dir)
	if err != nil {
		return 0, 0, finding{err}
	}
	found := false
	for _, i := range list {
		if i.ID == f.incident {
			from, to, found = i.Began-60, max(i.Ended, i.Seen, i.Began)+60, true
		}
	}
	if !found {
		return 0, 0, finding{fmt.Errorf("%s has no incident %d; it has %d, numbered from 1", dir, f.incident, len(list))}
	}
	return from, to, nil
}

// printIncident writes an incident in one line, and with its evidence when it opens.
func printIncident(out io.Writer, i watch.Incident) {
	fmt.Fprintln(out, noticeLine(i))
	if i.Ended != 0 {
		return
	}
	for _, e := range i.Evidence {
		fmt.Fprintf(out, "          %s\n", e.Text)
	}
}

func newWatchExport() *cobra.Command {
	var dir, url string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write Prometheus alerting rules and Grafana dashboards",
		Long: `Write weft.rules.yml and the dashboards weft.cluster.json, weft.job.json and
weft.host.json into a folder. The rules raise an alert for
every check that agents make, for agents that are silent, GPUs that spin in a
collective, ports that are slower than their peers, rails that carry too little, and
incidents of a server of 'weft watch'. Each says which 'weft doctor explain' explains it;
with --url it also links to that explanation.`,
		Example: `  weft watch export -o monitoring
  weft watch export -o monitoring --url https://ops.example/weft`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			boards, err := watch.Dashboards()
			if err != nil {
				return err
			}
			files := map[string]string{"weft.rules.yml": watch.Rules(url)}
			for name, b := range boards {
				files["weft."+name+".json"] = string(b) + "\n"
			}
			for name, text := range files {
				if err := output(cmd, filepath.Join(dir, name), func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&dir, "output", "o", ".", "`DIR` to write to")
	cmd.Flags().StringVar(&url, "url", "", "`URL` of the page of weft watch: alerts link there")
	return cmd
}
