package plan

import (
	"encoding/csv"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/work"
)

// outsidePoint is a published step that stands behind no factor and no habit.
type outsidePoint struct {
	group, source, model, gpu, framework, release, layout, unit, note string
	gpus                                                              int
	value                                                             float64
	cost                                                              *Cost
	off                                                               float64 // predicted step over published step, less 1
}

// outsidePoints prices what testdata/outside.csv lists, every layout as 'weft plan --layout' would.
func outsidePoints(t testing.TB) []outsidePoint {
	t.Helper()
	f, err := os.Open("testdata/outside.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	machines := map[string]*Machine{}
	var all []outsidePoint
	for _, c := range lines[1:] {
		p := outsidePoint{group: c[0], source: c[1], model: c[2], gpu: c[3], framework: c[6], release: c[7], layout: c[8], unit: c[9],
			note: c[11]}
		if p.gpus, err = strconv.Atoi(c[4]); err != nil {
			t.Fatal(c, err)
		}
		if p.value, err = strconv.ParseFloat(c[10], 64); err != nil {
			t.Fatal(c, err)
		}
		m, err := work.Named(p.model)
		if err != nil {
			t.Fatal(err)
		}
		nic := 200.0
		if c[5] != "" {
			if nic, err = strconv.ParseFloat(c[5], 64); err != nil {
				t.Fatal(c, err)
			}
		}
		key := fmt.Sprint(p.gpu, p.gpus, nic)
		if machines[key] == nil {
			machines[key] = clusterOf(t, p.gpu, p.gpus, nic)
		}
		l, err := ParseLayout(p.layout, Framework(p.framework), p.gpus)
		if err != nil {
			t.Fatal(c, err)
		}
		if p.framework == string(Megatron) && strings.HasPrefix(p.source, "Megatron-Bridge") && m.Experts > 0 {
			recipe(&l, p.model, p.gpu, p.release)
		}
		p.cost, err = Price(Question{Model: m, Machine: machines[key], Framework: Framework(p.framework), Layout: l, Release: p.release})
		if err != nil {
			t.Errorf("%s, %s: %v", p.source, p.model, err)
			continue
		}
		p.off = p.ratio(machines[key]) - 1
		all = append(all, p)
	}
	return all
}

// ratio is the predicted step over the published one, whatever the source states.
func (p outsidePoint) ratio(mc *Machine) float64 {
	kind, convention, _ := strings.Cut(p.unit, "_")
	mfu := p.cost.MFUs[convention]
	switch kind {
	case "tok":
		return p.value / p.cost.TokensPerS
	case "step":
		return p.cost.Step / p.value
	case "mfu":
		return p.value / mfu
	case "tflops":
		peak, _ := peakOf(mc, p.cost.Layout.Dtype)
		return p.value * 1e12 / (mfu * peak)
	}
	return math.NaN()
}

// Runs that are known to have fitted, and some that are known not to: the verdict is right in 95% of them.
func TestFitsAsReported(t *testing.T) {
	f, err := os.Open("testdata/fit.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	right, words := 0, map[string]int{}
	for _, c := range lines[1:] {
		gpus, err := strconv.Atoi(c[3])
		if err != nil {
			t.Fatal(c, err)
		}
		m, err := work.Named(c[1])
		if err != nil {
			t.Fatal(err)
		}
		l, err := ParseLayout(c[5], Framework(c[4]), gpus)
		if err != nil {
			t.Fatal(c, err)
		}
		cost, err := Price(Question{Model: m, Machine: clusterOf(t, c[2], gpus, 200), Framework: Framework(c[4]), Layout: l})
		if err != nil {
			t.Fatal(c, err)
		}
		if c[6] != "yes" && cost.Verdict == VerdictFits {
			t.Errorf("%s: %s on %d %s, %s ran out of memory and is said to fit", c[0], c[1], gpus, c[2], c[5])
		}
		words[c[6]+" "+cost.Verdict]++
		if cost.Fits == (c[6] == "yes") {
			right++
			continue
		}
		t.Logf("%s: %s on %d %s, %s: ran %s, predicted %.1f GB of %.1f", c[0], c[1], gpus, c[2], c[5], c[6], cost.Peak/1e9, cost.Capacity/1e9)
		for _, x := range cost.Memory {
			t.Logf("    %s %.1f GB", x.Name, x.Value/1e9)
		}
	}
	t.Logf("%d of %d verdicts are right: %v", right, len(lines)-1, words)
	if float64(right) < .97*float64(len(lines)-1) {
		t.Errorf("%d of %d verdicts are right; want 97%%", right, len(lines)-1)
	}
}

// outsideTable lists every point.
func outsideTable(points []outsidePoint) string {
	var b strings.Builder
	b.WriteString(`# Published steps that stand behind no factor

Made by:

    make plan-accuracy

Every row of predict/plan/testdata/outside.csv is a figure that others published, typed as a layout of ` + "`weft plan --layout`" + `; ` + "`go test -run Outside ./predict/plan`" + ` checks the table. No factor and no habit is fitted to a row. Tokens are
a second and GPU. [plan-accuracy.md](../plan-accuracy.md) says what is to be learned.

| source | model, GPUs | layout | published | predicted | step off by | |
|---|---|---|---|---|---|---|
`)
	for _, p := range points {
		kind, convention, _ := strings.Cut(p.unit, "_")
		var published, predicted string
		switch kind {
		case "tok":
			published, predicted = fmt.Sprintf("%.0f tokens", p.value), fmt.Sprintf("%.0f", p.cost.TokensPerS)
		case "step":
			published, predicted = fmt.Sprintf("%.3g s", p.value), fmt.Sprintf("%.3g s", p.cost.Step)
		case "mfu":
			published, predicted = fmt.Sprintf("%.1f%% of the peak (%s)", 100*p.value, convention), fmt.Sprintf("%.1f%%", 100*p.value/(1+p.off))
		default:
			published, predicted = fmt.Sprintf("%.4g TFLOP/s (%s)", p.value, convention), fmt.Sprintf("%.0f", p.value/(1+p.off))
		}
		fmt.Fprintf(&b, "| %s | %s, %d %s | %s %s | %s | %s | %+.0f%% | %s |\n",
			p.source, p.model, p.gpus, p.gpu, p.framework, p.layout, published, predicted, 100*p.off, p.note)
	}
	return b.String()
}

// outsideSummary gives the errors by group, by GPU and by type.
func outsideSummary(points []outsidePoint) string {
	var b strings.Builder
	table := func(title string, of func(outsidePoint) string) {
		by := map[string][]float64{}
		for _, p := range points {
			by[of(p)] = append(by[of(p)], p.off)
		}
		fmt.Fprintf(&b, "\n| %s | points | median error | p90 | median, signed |\n|---|---|---|---|---|\n", title)
		for _, g := range slices.Sorted(maps.Keys(by)) {
			var size []float64
			for _, x := range by[g] {
				size = append(size, math.Abs(x))
			}
			m, q := quantiles(size)
			fmt.Fprintf(&b, "| %s | %d | %.1f%% | %.1f%% | %+.1f%% |\n", g, len(size), 100*m, 100*q, 100*median(by[g]))
		}
	}
	table("group", func(p outsidePoint) string { return p.group })
	table("GPU", func(p outsidePoint) string { return p.gpu })
	table("type", func(p outsidePoint) string { return p.cost.Layout.Dtype })
	return b.String()
}

const outsidePage = "../../docs/reference/tables/plan-outside.md"

// What others published, and nothing here was fitted to: the tables in the documents are what the model gives now, and the
// groups that measurements stand behind stay as good as they are.
func TestOutside(t *testing.T) {
	points := outsidePoints(t)
	errors := "class,model,error\n"
	for _, p := range points {
		errors += fmt.Sprintf("%s,%s,%.3f\n", p.cost.class, p.model, p.off)
	}
	if *update {
		write(t, outsidePage, outsideTable(points))
		write(t, "outside_errors.csv", errors)
	} else if errors != outsideErrorsText {
		t.Error("outside_errors.csv is out of step with the model; make plan-accuracy writes it")
	}
	for path, text := range map[string]string{outsidePage: outsideTable(points),
		"../../docs/reference/plan-accuracy.md": outsideSummary(points)} {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !*update && !strings.Contains(string(page), text) {
			t.Errorf("%s is out of step with the model; make plan-accuracy writes it", path)
		}
	}
	by := map[string][]float64{}
	for _, p := range points {
		by[p.group] = append(by[p.group], math.Abs(p.off))
	}
	for group, most := range map[string]float64{"dense, Megatron": .08, "dense, Megatron on A100 with flash attention": .10,
		"dense, Megatron-DeepSpeed": .06, "FSDP": .06, "LoRA, FSDP": .05, "MoE, Megatron": .10} {
		if m, _ := quantiles(by[group]); len(by[group]) == 0 || m > most {
			t.Errorf("%s: the median error of %d published steps is %.1f%%; want at most %.0f%%", group, len(by[group]), 100*m, 100*most)
		}
	}
}

// A layout in which tensor parallel transfers are not cut up waits for all of forward's and a third of backward's; whoever asks without
// saying so is told of it.
func TestTensorParallelTransfersAreShown(t *testing.T) {
	m, err := work.Named("llama3.1-405b")
	if err != nil {
		t.Fatal(err)
	}
	mc := clusterOf(t, "H100", 1024, 400)
	ask := func(more string) *Cost {
		l, err := ParseLayout("tp=8,pp=8,vpp=7,micro=1,batch=512,seq=8192"+more, Megatron, 1024)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Price(Question{Model: m, Machine: mc, Framework: Megatron, Layout: l})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	on, off, bare := ask(""), ask(",tp-overlap=off"), ask(",tp-overlap=off,dp-overlap=off")
	if r := off.Step / on.Step; r < 1.03 || r > 1.15 {
		t.Errorf("without --tp-comm-overlap a step takes %.2f times as long; 405B on H100 has transfers of a fifth of its compute, of which 0.3 and 0.68 are shown",
			r)
	}
	if bare.Step <= off.Step {
		t.Errorf("gradients reduced after backward cost nothing: %g s and %g s", bare.Step, off.Step)
	}
	if note := strings.Join(on.Notes, " "); !strings.Contains(note, "--tp-comm-overlap") ||
		!strings.Contains(note, fmt.Sprintf("%.4g s", off.Step)) {
		t.Errorf("notes: %q", note)
	}
	if note := strings.Join(off.Notes, " "); strings.Contains(note, "--tp-comm-overlap") {
		t.Errorf("notes of a layout that says it: %q", note)
	}
}

// Torchtitan's tensor parallel transfers have nothing beside them unless its configuration says so, and the answer says what that costs.
func TestTorchtitanHidesWhatItIsTold(t *testing.T) {
	m, mc := named(t, "llama3-70b"), clusterOf(t, "H100", 64, 400)
	ask := func(option string) *Cost {
		c, err := ReadConfig("x.toml", []byte("[model]\nname = \"llama3\"\nflavor = \"70B\"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n"+
			"[parallelism]\ntensor_parallel_degree = 8\n"+option))
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.Layout(m, 64, Given{})
		if err != nil {
			t.Fatal(err)
		}
		cost, err := Price(Question{Model: m, Machine: mc, Framework: c.Framework, Layout: l})
		if err != nil {
			t.Fatal(err)
		}
		return cost
	}
	plain, async := ask(""), ask("enable_async_tensor_parallel = true\n")
	if r := plain.Step / async.Step; r < 1.01 || r > 1.2 {
		t.Errorf("without asynchronous tensor parallelism a step takes %.3f times as long", r)
	}
	if note := strings.Join(async.Notes, " "); !strings.Contains(note, "enable_async_tensor_parallel") ||
		!strings.Contains(note, fmt.Sprintf("%.4g s", plain.Step)) {
		t.Errorf("notes: %q", note)
	}
	if note := strings.Join(plain.Notes, " "); strings.Contains(note, "enable_async_tensor_parallel") {
		t.Errorf("notes of a file that says it: %q", note)
	}
}

// A GPU, a framework or a type that nobody measured is said so, and gets no factor below the slowest of what is like it.
func TestNoMeasuredNeighbour(t *testing.T) {
	for _, x := range []struct {
		gpu, framework, model, layout, says string
	}{
		{"MI300X", "megatron", "llama3-8b", "micro=2,batch=128,seq=8192", "on MI300X"},
		{"V100", "megatron", "gpt3-5b", "tp=8,micro=2,batch=128,seq=2048,dtype=fp16", "on V100-SXM"},
		{"B200", "fsdp", "llama3-8b", "micro=2,batch=128,seq=8192", "of fsdp on B200"},
		{"H100", "fsdp", "qwen3-30b-a3b", "ep=8,micro=2,batch=128,seq=4096", "of fsdp with experts on H100-SXM"},
		{"A100-80G", "megatron", "llama3-8b", "micro=1,batch=128,seq=8192", ""},
		{"H100", "megatron", "llama3-8b", "micro=1,batch=128,seq=8192", ""},
	} {
		m, err := work.Named(x.model)
		if err != nil {
			t.Fatal(err)
		}
		l, err := ParseLayout(x.layout, Framework(x.framework), 16)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Price(Question{Model: m, Machine: clusterOf(t, x.gpu, 16, 400), Framework: Framework(x.framework), Layout: l})
		if err != nil {
			t.Fatal(err)
		}
		if x.says == "" && c.Nearest.Remark != "" || !strings.Contains(c.Nearest.Remark, x.says) {
			t.Errorf("%s on %s: nearest says %q, want %q", x.framework, x.gpu, c.Nearest.Remark, x.says)
		}
		for _, r := range factorRows() {
			if x.gpu == "MI300X" && r.framework == Megatron && !r.moe && r.flash && c.Factor < r.value {
				t.Errorf("the factor on MI300X is %g, and %g was measured on %s", c.Factor, r.value, r.gpu)
			}
		}
	}
}

// What recompute of modules costs is the time of those modules: MLA's up-projections are a tenth of DeepSeek-V3's products, not a quarter.
func TestRecomputeCostsItsModules(t *testing.T) {
	m, err := work.Named("deepseek-v3")
	if err != nil {
		t.Fatal(err)
	}
	mc := clusterOf(t, "H100", 8, 400)
	l := Default(Megatron)
	l.Micro, l.Seq, l.ETP, l.EP, l.DP = 1, 4096, 1, 8, 8
	l.Recompute.Modules = []string{"mla_up_proj"}
	p := newPricer(m, mc, Megatron, l, habits)
	k := p.layer(true)
	if share := p.again(k, 1, 0) / k.gemm; share < .06 || share > .14 {
		t.Errorf("mla_up_proj computes %.1f%% of a layer's products again; its parameters are 9%% of those in use", 100*share)
	}
	p.l.Recompute.Modules = []string{"mlp"}
	if again := p.again(k, 1, 0); again != 0 {
		t.Errorf("a layer with experts has no plain MLP, and computes %g s of it again", again)
	}
	if dense := p.layer(false); p.again(dense, 1, 0) < .3*dense.gemm {
		t.Errorf("the MLP of a dense layer is %.0f%% of its products", 100*p.again(dense, 1, 0)/dense.gemm)
	}
}

// GPUs whose library nobody fitted send at the rate of their links: two MI300X have one xGMI link between them, eight have seven each.
func TestTransfersWithoutAModelTakeTime(t *testing.T) {
	m := clusterOf(t, "MI300X", 16, 400)
	const bytes = 256 << 20
	for n, most := range map[int]float64{2: 64e9, 8: 448e9} {
		s, how := m.Collective(sched.AllGather, n, 1, bytes)
		if rate := bytes * float64(n-1) / float64(n) / s; rate > most || rate < most/2 {
			t.Errorf("%d MI300X gather at %.0f GB/s, their links have %.0f (%s)", n, rate/1e9, most/1e9, how)
		}
	}
	one, _ := m.Collective(sched.AllGather, 8, 1, bytes)
	two, _ := m.Collective(sched.AllGather, 16, 1, bytes)
	if two < one {
		t.Errorf("sixteen in two hosts gather in %g s, eight in one in %g s", two, one)
	}
}
