package cli

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/predict/sim/failures"
)

// failureFlags are the flags of weft sim failures.
type failureFlags struct {
	preset             presetFlags
	on, model, fleet   string
	gpus, spares, runs int

	days, work, interval, stall, load, store, detect, timeout, localise, requeue, inPlace, kept, memory float64
	rates, repairs                                                                                      map[string]string
	tiers, grouped                                                                                      []string
	seed                                                                                                uint64
	asJSON                                                                                              bool
}

func newSimFailures() *cobra.Command {
	var p failureFlags
	cmd := &cobra.Command{
		Use:   "failures --cluster CLUSTER",
		Short: "Simulate a year of failures: goodput, best checkpoint interval, days to finish",
		Long: `Draw failures of a cluster's parts and follow one job over all GPUs: detection times, work repeated since the last
checkpoint, and how long hosts are away. Rates were measured on 16,384 H100 (Llama 3, 2024); --rate or the cluster
file's failure-rates override them. Published fleets fail from 0.4 to 3.7 times as often: --fleet takes another's rate, and
without it the answer says what both ends would give. 5% of the hosts cause 35% of the faults, in bursts; repairs are log-normal. A leaf
switch takes down all its hosts. Racks, spines and planes fail only with --rate, and power feeds, cooling units and the
like only with --group, because no public rates exist.

The best checkpoint interval is given by Young, Daly, exactly (Lambert's W) and by simulation. Equal seeds give equal
numbers.`,
		Example: `  weft sim failures --cluster rail --set hosts=2048 --model llama3.1-405b --days 54
  weft sim failures --cluster superpod-h100 --work 30 --spares 2 --json
  weft sim failures --cluster rail --interval 600 --memory-tier 0.9 --rate gpu=0.05
  weft sim failures --cluster rail --model llama3-70b --tier 'name=memory write=40 read=40 survives=0.8' --tier 'name=disk write=4 read=8 copy=100 survives=0.5'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	p.preset.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&p.on, "cluster", "", "`CLUSTER`: file, preset, or a kind of host")
	fl.IntVar(&p.gpus, "gpus", 0, "how many `GPUs` the job has; default: all")
	fl.StringVar(&p.model, "model", "", "`MODEL` whose checkpoints are saved, 14 bytes a parameter")
	fl.Float64Var(&p.store, "store", 200, "`GB/s` that the store takes and gives, all hosts together")
	fl.Float64Var(&p.days, "days", 365, "length of a run in `DAYS`")
	fl.Float64Var(&p.work, "work", 0, "`DAYS` of training to do: also say when it is done")
	fl.IntVar(&p.runs, "runs", 20, "how many `RUNS` to draw")
	fl.Uint64Var(&p.seed, "seed", 1, "`SEED` of the draws")
	fl.IntVar(&p.spares, "spares", 0, "`HOSTS` that stand by; default: enough for 99% of the time")
	fl.Float64Var(&p.interval, "interval", 0, "`SECONDS` of work between checkpoints; default: the best")
	fl.Float64Var(&p.stall, "stall", 10, "`SECONDS` that training stands still for a checkpoint")
	fl.Float64Var(&p.load, "load", 60, "`SECONDS` to load a checkpoint")
	fl.Float64Var(&p.memory, "memory-tier", 0, "also keep copies in peers' memory, which survive this `SHARE` of failures")
	fl.StringArrayVar(&p.tiers, "tier", nil,
		"a further place of checkpoints: `'name=disk write=4 read=8 survives=0.7'`, GB/s of a host; also every=SECONDS and copy=GB/s, at which training goes on when a copy is made; quickest first, repeatable")
	fl.Float64Var(&p.detect, "detect", 20, "`SECONDS` until a failure is known")
	fl.Float64Var(&p.timeout, "timeout", 600, "`SECONDS` until a hang is known")
	fl.Float64Var(&p.localise, "localise", 120, "`SECONDS` to find the part to blame")
	fl.Float64Var(&p.requeue, "requeue", 0, "`SECONDS` to start with other hosts; default: 454 at 2,048 GPUs and 105 more per doubling")
	fl.Float64Var(&p.inPlace, "in-place", 60, "`SECONDS` to start again on the same hosts")
	fl.Float64Var(&p.kept, "kept", .3, "`SHARE` of failures after which the same hosts go on")
	fl.StringToStringVar(&p.rates, "rate", nil,
		"failures per part and year, `PART=RATE`: gpu, host, nic, cable, switch, software, and rack, spine, plane where the cluster has them")
	fl.StringToStringVar(&p.repairs, "repair", nil,
		"median repair time in hours, `PART=HOURS` or PART=HOURS:SIGMA with the spread of its logarithm; default: gpu, host, nic 23:1.6, the others 6:1")
	fl.StringVar(&p.fleet, "fleet", "", "failures as often per host as in a published `FLEET`: "+strings.Join(failures.FleetNames(), ", ")+
		"; default: llama3")
	fl.StringArrayVar(&p.grouped, "group", nil,
		"hosts that fail together: `'name=power count=4 hosts=16 rate=0.1'`, that many power feeds or cooling units with that many hosts each, failures of one a year; repeatable")
	fl.BoolVar(&p.asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	return cmd
}

// run draws the failures and prints what they cost.
func (p *failureFlags) run(cmd *cobra.Command) error {
	if p.gpus < 0 || p.gpus == 0 && cmd.Flags().Changed("gpus") {
		return fmt.Errorf("--gpus is %d; it must be at least 1", p.gpus)
	}
	c, _, err := planCluster(cmd, p.on, p.preset, p.gpus)
	if err != nil {
		return err
	}
	have := c.Graph.Count(topo.GPU)
	if p.gpus == 0 {
		p.gpus = have
	}
	if p.gpus > have {
		return fmt.Errorf("--gpus is %d; %s has %d", p.gpus, c.Name, have)
	}
	parts, yearly, err := p.parts(c)
	if err != nil {
		return err
	}
	j, err := p.job(cmd, parts, yearly)
	if err != nil {
		return err
	}
	given := p.given(yearly)
	if p.fleet != "" {
		f, err := failures.FindFleet(p.fleet)
		if err != nil {
			return fmt.Errorf("--fleet: %w", err)
		}
		j.Hazards = failures.Scaled(j.Hazards, f.Times(), given)
	}
	r, err := failures.Best(j, p.runs, p.seed)
	if err != nil {
		return err
	}
	if p.fleet == "" && len(given) == 0 {
		if r.Fleets, err = failures.Across(j, p.runs, p.seed); err != nil {
			return err
		}
	}
	if p.asJSON {
		return printJSON(cmd.OutOrStdout(), r)
	}
	p.print(cmd.OutOrStdout(), c.Name, j, r)
	return nil
}

// parts are what may fail, and what the user and the cluster file say of how often it does in a year.
func (p *failureFlags) parts(c *cluster.Cluster) (failures.Parts, map[string]float64, error) {
	share := float64(p.gpus) / float64(c.Graph.Count(topo.GPU))
	part := func(n int) int { return int(float64(n)*share + .5) }
	leaves := 0
	c.Graph.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) {
		if n.Tier == 1 {
			leaves++
		}
	})
	nics := part(c.Graph.Count(topo.NIC))
	hosts := countHosts(c.Graph, c.Graph.First(topo.GPU, c.Graph.Count(topo.GPU)))
	parts := failures.Parts{Hosts: max(part(hosts), 1), GPUs: p.gpus, NICs: nics, Ports: nics, Leaves: part(leaves)}
	if leaves > 0 {
		parts.HostsPerLeaf = max(blast(c.Graph), 1)
	}
	parts.Groups = failures.Domains(c.Graph)
	yearly := map[string]float64{}
	for i := range parts.Groups {
		parts.Groups[i].Count = max(part(parts.Groups[i].Count), 1)
	}
	for _, text := range p.grouped {
		d, rate, err := parseGroup(text)
		if err != nil {
			return parts, nil, fmt.Errorf("--group %q: %w", text, err)
		}
		parts.Groups, yearly[d.Name] = append(parts.Groups, d), rate
	}
	for k, v := range c.Needs.FailureRates {
		if k != "cable" && k != "switch" { // a port's rate is measured for both together
			yearly[k] = v
		}
	}
	return parts, yearly, p.setRates(yearly, c.Name, parts.Groups)
}

// given are the rates that the user or the cluster file states, rather than the built-in ones.
func (p *failureFlags) given(yearly map[string]float64) map[string]float64 {
	out, usual := map[string]float64{}, cluster.DefaultNeeds().FailureRates
	for part, rate := range yearly {
		if _, typed := p.rates[part]; typed || rate != usual[part] {
			out[part] = rate
		}
	}
	return out
}

// setRates takes the rates of --rate.
func (p *failureFlags) setRates(yearly map[string]float64, cluster string, groups []failures.Group) error {
	known := []string{"gpu", "host", "nic", "cable", "switch", "software"}
	for _, d := range groups {
		known = append(known, d.Name)
	}
	for _, k := range slices.Sorted(maps.Keys(p.rates)) {
		r, err := strconv.ParseFloat(p.rates[k], 64)
		if err != nil || !(r >= 0) || math.IsInf(r, 0) {
			return fmt.Errorf("--rate %s=%s: want failures per part and year", k, p.rates[k])
		}
		if !slices.Contains(known, k) {
			return fmt.Errorf("--rate %s: known parts of %s: %s; groups of hosts that fail together, such as a power feed: "+
				"--group 'name=power count=4 hosts=16'", k, cluster, strings.Join(known, ", "))
		}
		yearly[k] = r
	}
	return nil
}

// job is what the failures interrupt. Its last tier is the store.
func (p *failureFlags) job(cmd *cobra.Command, parts failures.Parts, yearly map[string]float64) (j failures.Job, err error) {
	if err := p.check(); err != nil {
		return j, err
	}
	size, err := p.checkpoint(cmd)
	if err != nil {
		return j, err
	}
	if !cmd.Flags().Changed("requeue") {
		p.requeue = failures.Requeue(p.gpus)
	}
	j = failures.Job{Hosts: parts.Hosts, GPUs: p.gpus, Hazards: failures.Hazards(parts, yearly), Detect: p.detect, Timeout: p.timeout,
		Localise: p.localise, Requeue: p.requeue, InPlace: p.inPlace, Kept: p.kept, Spares: p.spares, Days: p.days, Work: p.work}
	if p.memory > 0 {
		j.Tiers = append(j.Tiers, failures.Tier{Name: "peer memory", Stall: .5, Load: 15, Survives: p.memory})
	}
	for _, text := range p.tiers {
		t, err := parseTier(text, size/float64(parts.Hosts))
		if err != nil {
			return j, fmt.Errorf("--tier %q: %w", text, err)
		}
		j.Tiers = append(j.Tiers, t)
	}
	j.Tiers = append(j.Tiers, failures.Tier{Name: "store", Stall: p.stall, Load: p.load, Every: p.interval})
	if !cmd.Flags().Changed("spares") {
		j.Spares = failures.Enough
	}
	return j, setRepairs(j.Hazards, p.repairs)
}

func (p *failureFlags) check() error {
	switch {
	case p.spares < 0 || p.work < 0 || p.interval < 0:
		return fmt.Errorf("--spares, --work and --interval must not be negative")
	case p.runs < 1 || !(p.days > 0):
		return fmt.Errorf("--runs %d, --days %g: want at least 1 run of more than 0 days", p.runs, p.days)
	case !(p.store > 0):
		return fmt.Errorf("--store is %g; want GB/s above 0", p.store)
	}
	return nil
}

// checkpoint is how many bytes a checkpoint of the model has, 0 without one. How long it takes the store follows, where nobody said it.
func (p *failureFlags) checkpoint(cmd *cobra.Command) (float64, error) {
	if p.model == "" {
		return 0, nil
	}
	m, err := loadModel(cmd, p.model)
	if err != nil {
		return 0, err
	}
	size := failures.CheckpointBytes(m.Params().Total)
	for flag, seconds := range map[string]*float64{"stall": &p.stall, "load": &p.load} {
		if !cmd.Flags().Changed(flag) {
			*seconds = size / (p.store * 1e9)
		}
	}
	return size, nil
}

// print says what the failures cost.
func (p *failureFlags) print(out io.Writer, cluster string, j failures.Job, r *failures.Result) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("job", "%d GPUs on %d hosts of %s, %d spare hosts, %d runs of %g days, seed %d",
		j.GPUs, j.Hosts, cluster, r.Spares, p.runs, p.days, p.seed)
	line("fails every", "%.2f h (mean time to failure); simulated %.2f h of running, %s times a run",
		r.MTTF/3600, r.Measured/3600, times(r.Failures))
	if seen := r.Failures * float64(r.Runs); seen < 100 {
		line("", "only %.0f failures were drawn: more --runs than %d give surer figures", seen, r.Runs)
	}
	line("checkpoint", "every %.0f s of work; stands still for %.1f s, loads in %.0f s", r.Interval, p.stall, p.load)
	for _, t := range j.Tiers[:len(j.Tiers)-1] {
		line("", "%s: every %.0f s, stands still for %.2g s, loads in %.2g s, survives %.0f%% of the failures",
			t.Name, r.Intervals["tier "+t.Name], t.Stall, t.Load, 100*t.Survives)
	}
	line("", "Young %.0f s, Daly %.0f s, exact %.0f s, by simulation %.0f s",
		r.Intervals["young"], r.Intervals["daly"], r.Intervals["exact"], r.Intervals["simulation"])
	line("goodput", "%.2f%% of all time (95%% sure: %.2f to %.2f%%), ETTR %.2f%%",
		100*r.Goodput, 100*r.GoodputLow, 100*r.GoodputUp, 100*r.ETTR)
	for _, x := range r.Fleets {
		line("", "in a fleet like %s, %.2g times as many failures: every %.2f h, goodput %.1f%%", x.Fleet, x.Times, x.MTTF/3600, 100*x.Goodput)
	}
	for _, k := range []string{"checkpoints", "repeated work", "detection", "restart", "waiting for hosts"} {
		line("", "%-18s %.2f%%", k, 100*r.Parts[k])
	}
	line("hosts away", "%.1f in the mean, %.0f at the 99th percentile: that many spares are enough 99%% of the time", r.Away, r.AwayP99)
	line("lost", "%.0f GPU hours a run", r.Lost)
	for _, x := range r.Causes {
		line("", "%-18s %6.1f failures, %.0f GPU hours", x.Name, x.Failures, x.GPUHours)
	}
	if len(r.Days) > 0 {
		if r.Unfinished > 0 {
			line("finishes", "never, as far as %d of %d runs go: not in %g days", r.Unfinished, r.Runs, 40*p.days)
		}
		line("finishes", "after %.1f days in half of the runs, %.1f in 90%%, %.1f in 99%%", r.Days["p50"], r.Days["p90"], r.Days["p99"])
	}
}

// times counts what happens in a run, tenths where it is rare.
func times(n float64) string {
	if n < 10 {
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// setRepairs gives parts the repair times of --repair, PART=HOURS or PART=HOURS:SIGMA.
func setRepairs(list []failures.Hazard, repairs map[string]string) error {
	for _, part := range slices.Sorted(maps.Keys(repairs)) {
		hours, sigma, spread := strings.Cut(repairs[part], ":")
		median, err := strconv.ParseFloat(hours, 64)
		if err != nil || !(median > 0 && median < 1e6) {
			return fmt.Errorf("--repair %s=%s: want median hours above 0, such as gpu=33 or gpu=33:1.8", part, repairs[part])
		}
		r := failures.Repair{Median: median, Sigma: -1}
		if spread {
			if r.Sigma, err = strconv.ParseFloat(sigma, 64); err != nil || !(r.Sigma >= 0 && r.Sigma <= 5) {
				return fmt.Errorf("--repair %s=%s: the spread of the logarithm is a number from 0 to 5", part, repairs[part])
			}
		}
		if err := failures.SetRepair(list, part, r); err != nil {
			return fmt.Errorf("--repair %s=%s: %w", part, repairs[part], err)
		}
	}
	return nil
}

// validGroup reports whether units of a group can fail as often as rate says; as NaN and infinity they cannot.
func validGroup(d failures.Group, rate float64) bool {
	return d.Name != "" && d.Count >= 1 && d.Hosts >= 0 && rate > 0 && !math.IsInf(rate, 0)
}

// parseGroup reads a kind of failure domain and how often one of them fails a year.
func parseGroup(text string) (failures.Group, float64, error) {
	d, rate := failures.Group{}, 0.0
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		var err error
		switch key {
		case "name":
			d.Name = value
		case "count":
			d.Count, err = strconv.Atoi(value)
		case "hosts":
			d.Hosts, err = strconv.Atoi(value)
		case "rate":
			rate, err = strconv.ParseFloat(value, 64)
		default:
			return d, 0, fmt.Errorf("%q is not known; want name=, count=, hosts=, rate=", word)
		}
		if err != nil {
			return d, 0, fmt.Errorf("%s: want a number", word)
		}
	}
	if !validGroup(d, rate) {
		return d, 0, fmt.Errorf("want name=NAME count=N hosts=N rate=FAILURES per unit and year, all above 0")
	}
	return d, rate, nil
}

// blast is how many hosts hang on one leaf switch.
func blast(g *topo.Graph) int {
	most := 0
	g.Each(topo.Switch, func(id topo.NodeID, n *topo.Node) {
		if n.Tier != 1 || most > 0 {
			return
		}
		hosts := map[topo.HostID]bool{}
		for _, e := range g.Edges(id) {
			if x := g.Nodes[e.Peer]; x.Kind == topo.NIC {
				hosts[x.Host] = true
			}
		}
		most = len(hosts)
	})
	return most
}

// readTier reads a name and, into values, numbers by their keys, which are there already.
func readTier(text string, values map[string]float64) (name string, err error) {
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		if key == "name" {
			name = value
			continue
		}
		if _, known := values[key]; !known {
			return name, fmt.Errorf("%q is not known; want name=, write=, read=, survives=, every=, copy=", word)
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return name, fmt.Errorf("%s: want a number above 0", word)
		}
		values[key] = v
	}
	return name, nil
}

// parseTier reads a place of checkpoints, of which a host holds that many bytes.
func parseTier(text string, bytes float64) (failures.Tier, error) {
	t := failures.Tier{}
	values := map[string]float64{"write": 0, "read": 0, "survives": 0, "every": 0, "copy": 0}
	var err error
	if t.Name, err = readTier(text, values); err != nil {
		return t, err
	}
	switch {
	case t.Name == "" || values["write"] == 0 || values["read"] == 0 || values["survives"] == 0:
		return t, fmt.Errorf("name=, write= and read= (GB/s of a host) and survives= (the share of failures that leave it whole) are needed")
	case values["survives"] > 1:
		return t, fmt.Errorf("survives=%g: want a share of at most 1", values["survives"])
	case bytes == 0:
		return t, fmt.Errorf("how large is a checkpoint? say --model")
	}
	t.Survives, t.Every = values["survives"], values["every"]
	t.Stall, t.Load = bytes/(values["write"]*1e9), bytes/(values["read"]*1e9)
	if c := values["copy"]; c > 0 { // training goes on once the copy is made; the save counts when it is written
		t.Stall, t.Drain = bytes/(c*1e9), bytes/(values["write"]*1e9)
	}
	return t, nil
}
