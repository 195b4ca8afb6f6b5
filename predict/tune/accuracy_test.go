package tune

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/unit"
)

var update = flag.Bool("update", false, "refit the constants and rewrite constants.go, regions_table.go and docs/reference/accuracy.md")

// study is everything that is computed from the measured points, once.
type study struct {
	singles, several []row
	x                *fit
	forms            [][2][]float64 // per form, errors at 1 MiB and up: GPUs left out, machine left out
	heldGPUs         [classes][bands][]float64
	heldMachine      [classes][bands][]float64
	heldNet          []float64
	heldRows         []heldRow
}

type heldRow struct {
	what string
	errs [bands][]float64
}

var studyOnce struct {
	sync.Mutex
	s *study
}

// newStudy fits and cross-validates; with -update the fit is used at once.
func newStudy(t testing.TB) *study {
	t.Helper()
	studyOnce.Lock()
	defer studyOnce.Unlock()
	if studyOnce.s != nil {
		return studyOnce.s
	}
	ms := newMachines(t)
	s := &study{singles: singleNode(t, ms), several: multiNode(t, ms)}
	s.x = rounded(fitAll(s.singles, s.several, forms[0]))
	if *update {
		fitted = *s.x
	}
	studyOnce.s = s
	return s
}

// rounded keeps four digits, which is what the table holds.
func rounded(x *fit) *fit {
	y := *x
	each(&y, func(_ string, v *float64) {
		if *v != 0 {
			scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(*v))))
			*v = math.Round(*v*scale) / scale
		}
	})
	return &y
}

// each visits every constant by name.
func each(x *fit, f func(name string, v *float64)) {
	for c := range classes {
		k := &x.Class[c]
		for _, l := range []struct {
			name string
			l    *law
		}{{"LL", &k.LL}, {"LL128", &k.LL128}, {"Simple", &k.Simple}, {"NVLS", &k.NVLS}, {"SendLL", &k.SendLL}, {"Send", &k.Send}} {
			for i, v := range []*float64{&l.l.Floor, &l.l.Hop, &l.l.Share, &l.l.Overlap} {
				f(fmt.Sprintf("%s %s %d", c, l.name, i), v)
			}
		}
		f(fmt.Sprintf("%s packed", c), &k.Packed)
		for i, v := range []*float64{&k.ExtraReduce, &k.ExtraGather, &k.ExtraScatter, &k.ExtraSend} {
			f(fmt.Sprintf("%s extra %d", c, i), v)
		}
	}
	for n := range networks {
		for i, v := range []*float64{&x.Net[n].Hop, &x.Net[n].Share, &x.Net[n].Overlap} {
			f(fmt.Sprintf("%s %d", netNames[n], i), v)
		}
	}
}

// TestConstantsAreTheFit refits and compares with the table.
func TestConstantsAreTheFit(t *testing.T) {
	s := newStudy(t)
	if *update {
		write(t, "constants.go", constantsFile(s))
	}
	var want []float64
	each(s.x, func(_ string, v *float64) { want = append(want, *v) })
	i := 0
	got := fitted
	each(&got, func(name string, v *float64) {
		if math.Abs(*v-want[i]) > .01*math.Abs(want[i])+1e-9 {
			t.Errorf("%s: the table has %g, refitting gives %g; run go test ./predict/tune -update if the points have changed", name, *v, want[i])
		}
		i++
	})
}

func (s *study) error(x *fit, r row) float64 {
	us, _ := x.time(r.m.f, r.op, r.a, r.p, r.bytes)
	return math.Abs(us/r.us - 1)
}

// split parts rows in those that f holds of and the others.
func split(rows []row, f func(row) bool) (in, out []row) {
	for _, r := range rows {
		if f(r) {
			in = append(in, r)
		} else {
			out = append(out, r)
		}
	}
	return in, out
}

// generationsLeftOut names the machines that are left out together: two of them
// are of one generation, and one is two classes.
var generationsLeftOut = [][]string{{"v100"}, {"a100_sxm", "a100"}, {"h100_sxm"}, {"b300_sxm"}, {"rtx_pro_6000_server"}}

// hold leaves out one GPU count, then one generation, and tests on it.
func (s *study) hold(o form, visit func(what string, machine bool, r row, err float64)) {
	for _, n := range []int{2, 4, 8} {
		out, in := split(s.singles, func(r row) bool { return r.gpus == n })
		x := &fit{Class: fitClasses(in, o)}
		for _, r := range out {
			visit(fmt.Sprintf("%d GPUs, all machines", n), false, r, s.error(x, r))
		}
	}
	for _, names := range generationsLeftOut {
		out, in := split(s.singles, func(r row) bool { return slices.Contains(names, r.machine) })
		x := &fit{Class: fitClasses(in, o)}
		for _, r := range out {
			visit(strings.Join(names, " and "), true, r, s.error(x, r))
		}
	}
}

// crossValidate fills in the held-out errors.
func (s *study) crossValidate() {
	if s.forms != nil {
		return
	}
	for i, o := range forms {
		var at [2][]float64
		s.hold(o, func(what string, machine bool, r row, err float64) {
			b := bandOf(r.bytes)
			if b != small {
				k := 0
				if machine {
					k = 1
				}
				at[k] = append(at[k], err)
			}
			if i > 0 {
				return
			}
			c := r.m.f.class()
			if machine {
				s.heldMachine[c][b] = append(s.heldMachine[c][b], err)
			} else {
				s.heldGPUs[c][b] = append(s.heldGPUs[c][b], err)
			}
			if len(s.heldRows) == 0 || s.heldRows[len(s.heldRows)-1].what != what {
				s.heldRows = append(s.heldRows, heldRow{what: what})
			}
			last := &s.heldRows[len(s.heldRows)-1]
			last.errs[b] = append(last.errs[b], err)
		})
		s.forms = append(s.forms, at)
	}
	for _, name := range []string{"aws_p4de_a100", "aws_p5_h100", "aws_p5en_h200"} {
		out, in := split(s.several, func(r row) bool { return r.machine == name })
		x := &fit{Class: s.x.Class}
		fitNetworks(x, in)
		for _, r := range out {
			if bandOf(r.bytes) == large {
				s.heldNet = append(s.heldNet, s.error(x, r))
			}
		}
	}
}

// coverage counts how many points lie inside of intervals that were made without them: of a GPU count from the other counts of the
// same class, of a generation from all other generations.
func (s *study) coverage(report func(what string, b band, points, inside int)) {
	type point struct {
		what  string
		class class
		err   float64
	}
	var by [2][bands][]point
	s.hold(forms[0], func(what string, machine bool, r row, err float64) {
		k := 0
		if machine {
			k = 1
		}
		b := bandOf(r.bytes)
		by[k][b] = append(by[k][b], point{what, r.m.f.class(), err})
	})
	for k, name := range []string{"a GPU count that nobody measured", "a generation that nobody measured"} {
		for b := range bands {
			points, inside := 0, 0
			for _, x := range by[k][b] {
				var others []float64
				for _, y := range by[k][b] {
					if y.what != x.what && (k == 1 || y.class == x.class) {
						others = append(others, y.err)
					}
				}
				if len(others) == 0 {
					continue
				}
				if points++; x.err <= quantile(others, .9) {
					inside++
				}
			}
			if points > 0 {
				report(name, band(b), points, inside)
			}
		}
	}
}

// quantile is the smallest value that a share p of the values does not exceed.
func quantile(list []float64, p float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[max(int(math.Ceil(p*float64(len(sorted))))-1, 0)]
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*v)
}

func three(list []float64) string {
	return fmt.Sprintf("%s | %s | %s", percent(quantile(list, .5)), percent(quantile(list, .9)), percent(quantile(list, 1)))
}

// predicted is the error of what a user gets.
func predicted(r row) float64 {
	return math.Abs(r.m.Predict(r.op, unit.Bytes(r.bytes)).Time.Microseconds()/r.us - 1)
}

// target is a figure that must be met.
type target struct {
	what   string
	median float64
	p90    float64 // 0 if none
	worst  float64
	rows   func(s *study) []row
}

func isSubset(r row) bool { return r.machine == "v100" || r.machine == "a100" }

var targets = []target{
	{what: "single node, 1 MiB and up, four operations", median: .10, p90: .20, rows: func(s *study) []row {
		in, _ := split(s.singles, func(r row) bool { return r.bytes >= 1<<20 })
		return in
	}},
	{what: "single node, below 1 MiB", median: .30, rows: func(s *study) []row {
		in, _ := split(s.singles, func(r row) bool { return r.bytes < 1<<20 })
		return in
	}},
	{what: "V100 and A100 subsets, 64 MiB and up", median: .08, p90: .08, rows: func(s *study) []row {
		in, _ := split(s.singles, func(r row) bool { return isSubset(r) && r.bytes >= 64<<20 })
		return in
	}},
	{what: "several nodes, 64 MiB and up", median: .20, worst: .20, rows: func(s *study) []row {
		in, _ := split(s.several, func(r row) bool { return r.bytes >= 64<<20 })
		return in
	}},
}

// TestAccuracy prints the errors of every machine, operation and size, and fails
// where a target is missed.
func TestAccuracy(t *testing.T) {
	s := newStudy(t)
	for _, g := range targets {
		var errs []float64
		for _, r := range g.rows(s) {
			errs = append(errs, predicted(r))
		}
		t.Logf("%-45s %s (median | 90th | worst) over %d points", g.what, three(errs), len(errs))
		if m := quantile(errs, .5); m > g.median {
			t.Errorf("%s: median %s, at most %s wanted", g.what, percent(m), percent(g.median))
		}
		if p := quantile(errs, .9); g.p90 > 0 && p > g.p90 {
			t.Errorf("%s: 90th percentile %s, at most %s wanted", g.what, percent(p), percent(g.p90))
		}
		if w := quantile(errs, 1); g.worst > 0 && w > g.worst {
			t.Errorf("%s: worst %s, at most %s wanted", g.what, percent(w), percent(g.worst))
		}
	}
	for _, line := range s.table() {
		t.Log(line)
	}
}

// cell is one line of the table.
type cell struct {
	machine string
	nodes   int
	op      sched.Collective
}

func (s *study) cells() (order []cell, errs map[cell]*[bands][]float64) {
	errs = map[cell]*[bands][]float64{}
	for _, r := range append(slices.Clone(s.singles), s.several...) {
		c := cell{r.machine, r.nodes, r.op}
		if errs[c] == nil {
			errs[c] = &[bands][]float64{}
			order = append(order, c)
		}
		b := bandOf(r.bytes)
		errs[c][b] = append(errs[c][b], predicted(r))
	}
	return order, errs
}

func (s *study) table() (lines []string) {
	order, errs := s.cells()
	for _, c := range order {
		for b := range bands {
			if list := errs[c][b]; len(list) > 0 {
				lines = append(lines, fmt.Sprintf("| %s | %d | %s | %s | %d | %s |", c.machine, c.nodes, c.op, b, len(list), three(list)))
			}
		}
	}
	return lines
}

// TestHeldOut leaves out GPU counts and generations, prints the error on them,
// and fails if the form in use is not the best on what was left out.
func TestHeldOut(t *testing.T) {
	if !*update && !bounded.Long() {
		t.Skip("refits some thirty times: make long")
	}
	s := newStudy(t)
	s.crossValidate()
	for _, line := range s.heldTable() {
		t.Log(line)
	}
	pooled := func(f [2][]float64) []float64 { return append(slices.Clone(f[0]), f[1]...) }
	for i, f := range s.forms[1:] {
		if got, other := quantile(pooled(s.forms[0]), .5), quantile(pooled(f), .5); got > other {
			t.Errorf("left-out points: median %s with %q, %s with %q", percent(got), forms[0].name, percent(other), forms[i+1].name)
		}
	}
	if m := quantile(s.forms[0][0], .5); m > .10 {
		t.Errorf("left-out GPU counts: median %s, at most 10%% wanted", percent(m))
	}
	if m := quantile(s.forms[0][1], .5); m > .15 {
		t.Errorf("left-out generations: median %s, at most 15%% wanted", percent(m))
	}
	if m := quantile(s.heldNet, .5); m > .25 {
		t.Errorf("left-out clusters: median %s, at most 25%% wanted", percent(m))
	}
	if *update {
		write(t, "regions_table.go", s.regionsFile())
	}
}

func (s *study) heldTable() (lines []string) {
	for _, h := range s.heldRows {
		for b := range bands {
			if len(h.errs[b]) > 0 {
				lines = append(lines, fmt.Sprintf("| %s | %s | %d | %s |", h.what, b, len(h.errs[b]), three(h.errs[b])))
			}
		}
	}
	return append(lines, fmt.Sprintf("| one cluster of several nodes | %s | %d | %s |", large, len(s.heldNet), three(s.heldNet)))
}

// TestAccuracyPage keeps docs/reference/accuracy.md true.
func TestAccuracyPage(t *testing.T) {
	const path = "../../docs/reference/accuracy.md"
	s := newStudy(t)
	if !*update && !bounded.Long() { // without what takes some thirty fits
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range s.table() {
			if !strings.Contains(string(page), line+"\n") {
				t.Errorf("%s does not have %q; run go test ./predict/tune -update and read the difference", path, line)
			}
		}
		return
	}
	s.crossValidate()
	page := s.page()
	if *update {
		write(t, path, page)
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, page) {
		t.Errorf("%s is not what the points give; run go test ./predict/tune -update and read the difference", path)
	}
}

func (s *study) page() []byte {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# How far off predictions are\n")
	p("Made by `make accuracy` from the measured points in `predict/tune/testdata/measured` (sources at the end).")
	p("A prediction is what `weft sim collective --as nccl` gives: NCCL's choice of algorithm and protocol, and the time by constants")
	p("that belong to a GPU generation, a kind of link and a protocol. Error is |predicted / measured - 1|.\n")
	p("## Targets\n\n| what | points | median | 90th percentile | worst | wanted |\n|---|---|---|---|---|---|")
	for _, g := range targets {
		var errs []float64
		for _, r := range g.rows(s) {
			errs = append(errs, predicted(r))
		}
		want := "median " + percent(g.median)
		if g.p90 > 0 {
			want += ", 90th " + percent(g.p90)
		}
		if g.worst > 0 {
			want += ", worst " + percent(g.worst)
		}
		p("| %s | %d | %s | %s |", g.what, len(errs), three(errs), want)
	}
	p("\n## Left out of the fit\n\nThe constants are fitted again without the points named, and tried on them. This is what to expect of a machine or a")
	p("GPU count that nobody measured. A generation that is left out borrows the mean of its neighbours.\n")
	p("| left out | sizes | points | median | 90th percentile | worst |\n|---|---|---|---|---|---|")
	for _, l := range s.heldTable() {
		p("%s", l)
	}
	p("\n## Coverage of the intervals\n")
	p("An answer's interval is the 90th percentile of such errors, by kind of machine and size. Here it is taken without the GPU")
	p("count, or the generation, that it is tried on, so that none of its errors is known to it. Wanted: 90%%.\n")
	p("| interval for | sizes | points | inside |\n|---|---|---|---|")
	s.coverage(func(what string, b band, points, inside int) {
		p("| %s | %s | %d | %.0f%% |", what, b, points, 100*float64(inside)/float64(points))
	})
	p("\n## Form of the model\n\nChosen by the error on what was left out, 1 MiB and up.\n")
	p("| form | GPU counts left out: median | 90th | generations left out: median | 90th |\n|---|---|---|---|---|")
	for i, o := range forms {
		f := s.forms[i]
		p("| %s | %s | %s | %s | %s |", o.name, percent(quantile(f[0], .5)), percent(quantile(f[0], .9)), percent(quantile(f[1], .5)),
			percent(quantile(f[1], .9)))
	}
	p("\n## Every machine, operation and size\n\n| machine | nodes | operation | sizes | points | median | 90th percentile | worst |\n|---|---|---|---|---|---|---|---|")
	for _, l := range s.table() {
		p("%s", l)
	}
	p("\n## What the model knows of several nodes\n")
	p("- A ring crosses each node's NICs once, so of the hops of a node's GPUs one goes by a NIC and the others by NVLink: rings over")
	p("  several nodes load NVLink by (g-1)/g of what they do inside one, with g GPUs a node.")
	p("- The fabric's cuts: all that the NICs below a switch send to others passes the switch's links upwards. Bytes are")
	p("  taken to spread evenly. Fabrics without tiers (torus, dragonfly) are refused.\n")
	p("## Known to be off\n")
	p("- 1,440 GB200 in 20 racks with NVLink SHARP off (CoreWeave, NCCL 2.26.2): the ring is predicted within 8%% from 512 MiB to 8 GiB,")
	p("  where 414 GB/s are predicted and 381 were measured. Nothing is fitted to it: over a rack's NVLinks LL128 moves 0.74 of what")
	p("  Simple does, the mean of Ampere and Hopper. With LL128 two and three B200 reach 384 and 479 GB/s (NVIDIA/nccl pull request 2343);")
	p("  408 and 453 are predicted. Below 4 GiB the model expects the tree where NCCL chose the ring: `--nvls off --nccl-algo Ring`.")
	p("- Rings over one and two racks are predicted 23 and 34%% too slow at 8 GiB: over 72 GPUs they reach 835 GB/s, over four of the")
	p("  fitted machine 640. Both lie in the interval, which widens with the distance to what was measured.")
	p("- Five V100, of which one is reached through another: 45 GB/s, 37 measured. NCCL keeps that hop's buffer on the GPU between, and")
	p("  its receiver reads over NVLink, at a rate that nobody published. The interval is that of an unknown generation.")
	p("- Below 1 MiB: all-to-all on H100 has five points of 16 us between neighbours of 8, which is noise. LL through two sockets moves")
	p("  half of what it moves through one: eight RTX PRO 6000 are predicted 25 to 40%% too fast at 256 and 512 KiB.")
	p("- Three racks without NVLink SHARP are within 6%% (NVIDIA/nccl issue 1801, NCCL 2.27.3, 16 GiB): the ring with 4 and 8 GPUs a rack 196.7")
	p("  and 393.7 GB/s, predicted 188.6 and 372.1; the tree 234.4 and 485.7, predicted 230.4 and 475.9.")
	p("- NVLSTree across racks was never measured in public; 807 GB/s are predicted for 20 racks.")
	p("- 64 H100 over NDR: 4 to 10%% slow from 1 to 8 GiB. Latency and bytes overlap as they did on two nodes of AWS, which is pessimistic")
	p("  for InfiniBand; there are no points of InfiniBand that may be published here to fit it to.")
	p("\n## Sources\n")
	p("`a100_sxm`, `h100_sxm`, `b300_sxm`, `rtx_pro_6000_server`: NVIDIA aiconfigurator (Apache-2.0). `v100`, `a100`: VIA-Research vTrain (MIT).")
	p("`aws_*`: AWS distributed-training samples. Published figures beside them: NVIDIA GTC24 S62129 and GTC25 S72583.\n")
	p("The wiring of `rtx_pro_6000_server` is not published with its points; two cards behind each of four PCIe switches is assumed, which")
	p("is how servers with ConnectX-8 as their PCIe switch are built, and which agrees with where its protocol changes.")
	return b.Bytes()
}

// constantsFile prints the table of constants.
func constantsFile(s *study) []byte {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	count := func(c class, a algorithm, pr protocol) int { return len(take(s.singles, c, a, pr)) }
	p("// Code generated by go test ./predict/tune -update; DO NOT EDIT.\n")
	p("package tune\n")
	p("// fitted holds every constant of the measured model. Each law is the one that")
	p("// minimises the mean of |log(predicted/measured)|^1.3 over the points of its")
	p("// class, algorithm and protocol (how many stands behind it), in the regime in")
	p("// which NCCL's model chooses it. \"borrowed\" laws have no points: they are the")
	p("// geometric mean of the neighbouring generations', or NCCL's own figures. Rates")
	p("// are shares of wire rate times the catalogue's efficiency of the link.")
	p("// Refitting gives the table back: TestConstantsAreTheFit.")
	p("var fitted = fit{\n\tClass: [classes]constants{")
	names := [classes]string{"classVolta", "classAmpere", "classHopper", "classBlackwell", "classPCIe", "classHost"}
	for c := range classes {
		k := &s.x.Class[c]
		p("\t\t%s: {", names[c])
		for _, l := range []struct {
			name string
			l    law
			n    int
		}{{"LL", k.LL, count(c, ring, ll)}, {"LL128", k.LL128, count(c, ring, ll128)}, {"Simple", k.Simple, count(c, ring, simple)},
			{"NVLS", k.NVLS, count(c, nvls, simple)}, {"SendLL", k.SendLL, count(c, p2p, ll)}, {"Send", k.Send, count(c, p2p, simple)}} {
			how := fmt.Sprintf("%d points", l.n)
			switch {
			case c == classBlackwell && l.name == "LL128":
				how = "Simple's: the points where NCCL's model takes LL128 lie on Simple's curve"
			case l.n < 4:
				how = "borrowed"
			}
			p("\t\t\t%s: law{Floor: %g, Hop: %g, Share: %g, Overlap: %g}, // %s", l.name, l.l.Floor, l.l.Hop, l.l.Share, l.l.Overlap, how)
		}
		how := "of Simple, by LL128's points"
		if count(c, ring, ll128) < 4 || c == classBlackwell {
			how = "borrowed"
		}
		p("\t\t\tPacked: %g, // %s", k.Packed, how)
		p("\t\t\tExtraReduce: %g, ExtraGather: %g, ExtraScatter: %g, ExtraSend: %g,\n\t\t},",
			k.ExtraReduce, k.ExtraGather, k.ExtraScatter, k.ExtraSend)
	}
	p("\t},\n\tNet: [networks]network{")
	notes := [networks]string{"hop from the 46 us of two nodes, share 24/25 and 48/50 as published; overlap from published peaks",
		"hop from 8 bytes on p4de; overlap of all points at 1 MiB and up", "hop from 8 bytes on p5; overlap likewise"}
	for n, name := range []string{"netRDMA", "netEFA1", "netEFA2"} {
		v := s.x.Net[n]
		p("\t\t%s: {Hop: %g, Share: %g, Overlap: %g}, // %s", name, v.Hop, v.Share, v.Overlap, notes[n])
	}
	p("\t},\n}")
	return b.Bytes()
}

// regionsFile prints the summary of errors that predictions quote.
func (s *study) regionsFile() []byte {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("// Code generated by go test ./predict/tune -update; DO NOT EDIT.\n")
	p("package tune\n\nimport \"github.com/weft-fabric/weft/collective/sched\"\n")
	p("// regions is where measured points lie, and the median error that predictions")
	p("// show there: below 1 MiB, below 64 MiB, from there on; -1 where nobody measured.")
	p("var regions = []region{")
	order, errs := s.cells()
	constNames := map[sched.Collective]string{sched.AllReduce: "sched.AllReduce", sched.AllGather: "sched.AllGather",
		sched.ReduceScatter: "sched.ReduceScatter", sched.AllToAll: "sched.AllToAll"}
	all := append(slices.Clone(s.singles), s.several...)
	for _, c := range order {
		byClass := map[class][]row{}
		for _, r := range all {
			if (cell{r.machine, r.nodes, r.op}) == c {
				byClass[r.m.f.class()] = append(byClass[r.m.f.class()], r)
			}
		}
		for k := range classes {
			rows := byClass[k]
			if len(rows) == 0 {
				continue
			}
			var gpus []int
			from, to := rows[0].bytes, rows[0].bytes
			for _, r := range rows {
				if !slices.Contains(gpus, r.gpus) {
					gpus = append(gpus, r.gpus)
				}
				from, to = min(from, r.bytes), max(to, r.bytes)
			}
			slices.Sort(gpus)
			var med [bands]string
			for i := range bands {
				med[i] = "-1"
				if len(errs[c][i]) > 0 {
					med[i] = fmt.Sprintf("%.3f", quantile(errs[c][i], .5))
				}
			}
			p("\t{machine: %q, class: %d, nodes: %d, net: %d, op: %s, gpus: %s, from: %.0f, to: %.0f, err: [bands]float64{%s}},",
				c.machine, k, c.nodes, rows[0].m.f.net(), constNames[c.op],
				strings.ReplaceAll(fmt.Sprintf("%#v", gpus), ", ", ", "), from, to, strings.Join(med[:], ", "))
		}
	}
	p("}\n")
	list := func(name, comment string, at float64, from *[classes][bands][]float64) {
		p("// %s %s", name, comment)
		p("var %s = [classes][bands]float64{", name)
		for c := range classes {
			var v []string
			for i := range bands {
				e := quantile(from[c][i], at)
				if math.IsNaN(e) { // a class without points there is as uncertain as the worst that has some
					for d := range classes {
						if o := quantile(from[d][i], at); !math.IsNaN(o) && (math.IsNaN(e) || o > e) {
							e = o
						}
					}
				}
				v = append(v, fmt.Sprintf("%.3f", e))
			}
			p("\t{%s}, // %s", strings.Join(v, ", "), c)
		}
		p("}\n")
	}
	list("heldGPUs", "is the median error on a GPU count that was left out of the fit.", .5, &s.heldGPUs)
	list("heldMachine", "is the median error on a generation that was left out of the fit.", .5, &s.heldMachine)
	list("withinGPUs", "is the 90th percentile of the error on a GPU count that was left out of the fit.", .9, &s.heldGPUs)
	list("withinMachine", "is the 90th percentile of the error on a generation that was left out of the fit.", .9, &s.heldMachine)
	p("// heldNet is the 90th percentile of the error at 64 MiB and up on a cluster that")
	p("// was left out of the fit: with so few clusters the median says too little.")
	p("const heldNet = %.3f", quantile(s.heldNet, .9))
	return b.Bytes()
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if strings.HasSuffix(path, ".go") {
		var err error
		if text, err = format.Source(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
