package plan

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/model/work"
)

//go:embed points.csv
var pointsText string

//go:embed factors.csv
var factorsText string

// Point is one measured training step.
type Point struct {
	ID, Release, GPU, Remark string
	Framework                Framework
	Model                    *work.Model
	GPUs                     int
	NIC                      float64 // Gb/s a GPU
	Layout                   Layout
	Step                     float64 // seconds
	Memory                   float64 // bytes, the peak that was reported; 0 if none
	Error                    float64 // predicted over measured, less 1, with the point's model left out of the fit; NaN if not scored
}

// Points are the measured training steps that stand behind the factors.
var Points = sync.OnceValue(func() []Point {
	lines := strings.Split(strings.TrimSpace(pointsText), "\n")
	head := strings.Split(lines[0], ",")
	var all []Point
	for _, line := range lines[1:] {
		cells := strings.Split(line, ",")
		f := map[string]string{}
		for i, h := range head {
			f[h] = cells[i]
		}
		n := func(k string) int { v, _ := strconv.Atoi(f[k]); return v }
		x := func(k string) float64 { v, _ := strconv.ParseFloat(f[k], 64); return v }
		p := Point{ID: f["id"], Release: f["release"], GPU: f["gpu"], Remark: f["remark"], Framework: Framework(f["framework"]), GPUs: n("gpus"),
			NIC: x("nic_gbps"), Step: x("step_s"), Memory: x("mem_gb") * 1e9, Error: math.NaN()}
		if v, err := strconv.ParseFloat(f["error"], 64); err == nil {
			p.Error = v
		}
		p.Model = pointModel(f["model"], n("heads"))
		if p.Model == nil {
			continue
		}
		if strings.Contains(p.Remark, "w/ MTP") || p.Release >= "25.11" && p.Model.Name == "deepseek-v3" && p.Remark == "" &&
			strings.HasSuffix(p.ID, "-mb") {
			m := *p.Model
			m.MTP = 1
			p.Model = &m
		}
		l := Default(p.Framework)
		l.TP, l.CP, l.PP, l.VPP, l.EP, l.ETP, l.DP = n("tp"), n("cp"), n("pp"), n("vpp"), n("ep"), n("etp"), n("dp")
		l.ZeRO, l.Micro, l.Batch, l.Seq, l.Dtype, l.Phase = n("zero"), n("micro"), n("batch"), n("seq"), f["dtype"], f["phase"]
		if l.VPP > 1 {
			l.Schedule = "interleaved"
		}
		if l.VPP > 1 && p.Model.Layers < l.PP*l.VPP { // printed as layers a chunk
			l.VPP = p.Model.Layers / l.PP / l.VPP
		}
		if l.ETP == 0 {
			l.ETP = 1
			if l.EP == 1 {
				l.ETP = l.TP
			}
		}
		switch f["recompute"] {
		case "full":
			l.Recompute.Full = true
		case "selective", "op":
			l.Recompute.Modules = []string{"op"}
		case "core_attn":
			l.Recompute.Modules = []string{"core_attn"}
		}
		switch {
		case strings.HasSuffix(p.ID, "-bloom"): // Megatron-DeepSpeed of early 2022
			l.Sequence, l.Overlap, l.Flash, l.Dropout = false, false, false, false
			l.Grad = map[string]string{"fp16": "bf16", "bf16": "fp32"}[l.Dtype]
		case strings.HasSuffix(p.ID, "-korthikanti"): // Megatron-LM of 2022: rows with selective recompute also have sequence parallelism
			l.Sequence, l.Overlap, l.Flash, l.Dropout, l.Grad = !l.Recompute.Full, false, false, true, "bf16"
		case strings.HasSuffix(p.ID, "-mpt"):
			l.FusedLoss = true
		case p.Release == "paxml": // configure.sh: FSDP over one host, or over 16, and copies beyond
			l.Shard = 8
			if p.Model.Name == "gpt3-175b" {
				l.Shard = 128
			}
		case p.Release == "maxtext" && p.GPUs >= 512: // the same
			l.Shard = 128
		case strings.HasSuffix(p.ID, "-nano"):
			l.Grad, l.Overlap = "fp32", false
		case p.Release == "torchtitan": // some rows are with its asynchronous tensor parallelism, and say so
			l.TPOverlap = l.TP == 1 || f["remark"] == "async"
			l.Eager = f["remark"] == "eager"
		case p.Framework == Megatron:
			l.Grad = "bf16"
			if p.Model.Experts > 0 {
				recipe(&l, p.Model.Name, p.GPU, p.Release)
			}
		}
		if l.Phase != "pretrain" { // NeMo's and Megatron-Bridge's recipes for fine-tuning pack SQuAD, whose examples have about 200 tokens
			l.Document = 200
		}
		p.Layout = l
		if v := x("mfu_full"); v > 0 && p.Step == 0 {
			p.Step = p.Model.TrainFLOPs(l.Seq, work.Full, 0) * float64(l.Batch) * float64(l.Seq) / (v / 100 * 989.4e12 * float64(p.GPUs))
		}
		all = append(all, p)
	}
	return all
})

// pointModel finds the model of a point. BLOOM's candidates carry their shape in their name.
func pointModel(name string, heads int) *work.Model {
	var size string
	var h, l int
	if n, _ := fmt.Sscanf(strings.ReplaceAll(name, "-", " "), "bloom %s h%d l%d", &size, &h, &l); n == 3 {
		if heads == 0 {
			heads = 96
		}
		return &work.Model{Name: name, Layers: l, Hidden: h, FFN: 4 * h, Heads: heads, KVHeads: heads, HeadDim: h / heads, Vocab: 250880,
			Tied: true, LayerNorm: true, Bias: true}
	}
	m, err := work.Named(name)
	if err != nil {
		return nil
	}
	return m
}

// Nearest is the measured step most like a plan, and how wrong the model is there.
type Nearest struct {
	ID     string  `json:"id"`
	What   string  `json:"what"`
	Step   float64 `json:"measured_step_s"`
	Error  float64 `json:"error"`    // predicted over measured, less 1, the point's model left out of the fit
	Far    float64 `json:"distance"` // 0: the same; above 3 nothing measured is near
	Remark string  `json:"remark,omitempty"`
}

// nearestPoint looks for the point most like a question: the same framework, chip and type count most,
// then size and layout in doublings.
func nearestPoint(q Question) *Nearest {
	if q.Model.CNN != nil {
		return nil
	}
	best, far := -1, math.Inf(1)
	doublings := func(a, b float64) float64 { return math.Abs(math.Log2(max(a, 1) / max(b, 1))) }
	params := q.Model.Params().Active
	points := Points()
	for i, p := range points {
		if p.Step == 0 {
			continue
		}
		d := 0.0
		if p.Framework != q.Framework {
			d += 2
		}
		if chipOf(p.GPU) != chipOf(q.Machine.GPU.Name) {
			d += 2
		} else if !sameGPU(q.Machine.GPU.Name, p.GPU) {
			d += .3
		}
		if p.Layout.Dtype != q.Layout.Dtype && !(half(p.Layout.Dtype) && half(q.Layout.Dtype)) {
			d++
		}
		if (p.Model.Experts > 0) != (q.Model.Experts > 0) {
			d += 2
		}
		if p.Layout.Phase != q.Layout.Phase {
			d++
		}
		if p.Layout.Recompute.Full != q.Layout.Recompute.Full {
			d += .7
		}
		l, k := p.Layout, q.Layout
		d += .5*doublings(p.Model.Params().Active, params) + .15*doublings(float64(p.GPUs), float64(k.GPUs())) + .3*doublings(float64(l.Seq),
			float64(k.Seq))
		d += .2*(doublings(float64(l.TP), float64(k.TP))+doublings(float64(l.PP), float64(k.PP))+doublings(float64(l.CP),
			float64(k.CP))+doublings(float64(l.EP), float64(k.EP))) + .1*doublings(float64(l.Micro), float64(k.Micro))
		if (l.ZeRO == 3) != (k.ZeRO == 3) {
			d += .5
		}
		d += sent(l, k)
		if math.IsNaN(p.Error) {
			d += .2
		}
		if p.Model.Name == q.Model.Name {
			d -= .05
		}
		// Rows of the same run in several releases: the latest.
		if d < far-1e-9 {
			best, far = i, d
		}
	}
	p := points[best]
	n := &Nearest{ID: p.ID, Step: p.Step, Error: p.Error, Far: max(far, 0),
		What: fmt.Sprintf("%s on %d %s, %s, %s", p.Model.Name, p.GPUs, p.GPU, strings.TrimSpace(string(p.Framework)+" "+p.Release), p.Layout)}
	if math.IsNaN(n.Error) {
		n.Error = 0
		n.Remark = "the model was not scored there"
	}
	if unlike := p.unlike(q); len(unlike) > 0 {
		n.Remark = "no measured neighbour: nothing was measured " + strings.Join(unlike, ", nor ")
	}
	if far > 3 && n.Remark == "" {
		n.Remark = "nothing measured is near: this figure is an extrapolation"
	}
	if math.Abs(n.Error) > .15 && n.Remark == "" {
		n.Remark = "the model is far off there: do not rely on this figure without a measurement of your own"
	}
	return n
}

// sent is how far apart the ways are by which tokens reach experts: which kernels carry them, and whether compute of another micro-batch
// hides them. Hiding them made steps of some releases twice as long, which says nothing of steps that do not.
func sent(l, k Layout) float64 {
	d := 0.0
	if l.EPOverlap != k.EPOverlap {
		d++
	}
	if l.EP > 1 && k.EP > 1 && l.copiesOnce() != k.copiesOnce() {
		d += .3
	}
	return d
}

// unlike says what about a question no measured step shares: its GPU's generation, its framework there, its type there, experts there.
func (p *Point) unlike(q Question) []string {
	var out []string
	gpu := q.Machine.GPU.Name
	measured := func(ok func(Point) bool) bool {
		return slices.ContainsFunc(Points(), func(p Point) bool { return p.Step > 0 && chipOf(p.GPU) == chipOf(gpu) && ok(p) })
	}
	if !measured(func(Point) bool { return true }) {
		return []string{"on " + gpu + " or its sisters"}
	}
	if !measured(func(p Point) bool { return p.Framework == q.Framework }) {
		out = append(out, fmt.Sprintf("of %s on %s or its sisters", q.Framework, gpu))
	}
	if !measured(func(p Point) bool {
		return p.Layout.Dtype == q.Layout.Dtype || half(p.Layout.Dtype) && half(q.Layout.Dtype)
	}) {
		out = append(out, fmt.Sprintf("in %s on %s or its sisters", q.Layout.Dtype, gpu))
	}
	if q.Model.Experts > 0 && !measured(func(p Point) bool { return p.Framework == q.Framework && p.Model.Experts > 0 }) {
		out = append(out, fmt.Sprintf("of %s with experts on %s or its sisters", q.Framework, gpu))
	}
	return out
}

func half(t string) bool { return t == "bf16" || t == "fp16" }

// sameGPU reports whether the catalogue's name and a point's are of one GPU.
func sameGPU(name, point string) bool {
	point = map[string]string{"A100-80G": "A100-SXM-80GB", "A100-40G": "A100-SXM-40GB",
		"H100": "H100-SXM"}[point] + map[bool]string{true: point}[!slices.Contains([]string{"A100-80G", "A100-40G", "H100"}, point)]
	return name == point
}

// chipOf is the generation of a GPU by its name.
func chipOf(gpu string) string {
	for _, g := range []struct{ prefix, chip string }{{"A100", "a100"}, {"A800", "a100"}, {"H100", "h100"}, {"H200", "h100"}, {"H800", "h100"},
		{"H20", "h100"}, {"GH200", "h100"}, {"B200", "b200"}, {"GB200", "b200"}, {"B300", "b200"}, {"GB300", "b200"}} {
		if strings.HasPrefix(gpu, g.prefix) {
			return g.chip
		}
	}
	return gpu
}

// factor is one row of factors.csv.
type factorRow struct {
	framework Framework
	gpu       string
	dtype     string
	moe       bool
	value     float64
	points    int
	models    int
	flash     bool   // attention of these steps did not write its scores
	pool      string // what else the points are of, where fewer than three models of the class were measured
}

var factorRows = sync.OnceValue(func() []factorRow {
	var rows []factorRow
	for _, line := range strings.Split(strings.TrimSpace(factorsText), "\n")[1:] {
		c := strings.Split(line, ",")
		v, _ := strconv.ParseFloat(c[4], 64)
		n, _ := strconv.Atoi(c[5])
		m, _ := strconv.Atoi(c[6])
		rows = append(rows, factorRow{Framework(c[0]), c[1], c[2], c[3] == "moe", v, n, m, c[7] == "flash", strings.ReplaceAll(c[8], ";", ",")})
	}
	return rows
})

// FactorFor gives the ratio of kernels in a running step to kernels alone, for a framework, a GPU and a
// type, and where it comes from. A combination that nobody measured takes the row that is most like it, and says so. Attention
// that writes its scores makes no other kernel faster.
func FactorFor(f Framework, gpu, dtype string, moe, flash bool) (float64, string) {
	value, from := factorFor(f, gpu, dtype, moe, flash)
	if flash {
		return value, from
	}
	measured := slices.ContainsFunc(factorRows(), func(r factorRow) bool {
		return r.framework == f && chipOf(r.gpu) == chipOf(gpu) && !r.flash
	})
	if other, source := factorFor(f, gpu, dtype, moe, true); !measured && other > value {
		return other, source
	}
	return value, from
}

func factorFor(f Framework, gpu, dtype string, moe, flash bool) (float64, string) {
	if dtype == "fp16" || dtype == "fp32" {
		dtype = "bf16"
	}
	if dtype == "fp8block" {
		dtype = "fp8"
	}
	// Rows are compared by what they share with the question, word by word, the most telling first. The chip's kernels are
	// priced by themselves, so what is lost around them is the framework's habit more than the chip's; layers with
	// experts lose it elsewhere, and steps before flash attention are of another time.
	shares := func(r factorRow) [6]bool {
		return [6]bool{r.framework == f, r.moe == moe, r.flash == flash, chipOf(r.gpu) == chipOf(gpu), r.dtype == dtype, sameGPU(gpu, r.gpu)}
	}
	better := func(a, b factorRow) bool {
		x, y := shares(a), shares(b)
		for i := range x {
			if x[i] != y[i] {
				return x[i]
			}
		}
		return a.points > b.points
	}
	rows := factorRows()
	best := rows[0]
	for _, r := range rows[1:] {
		if better(r, best) {
			best = r
		}
	}
	// On a chip whose steps nobody measured the slowest of what is like it is taken, so that a plan promises too little rather than
	// too much. A GPU below its own power limit is slow for a reason of its own.
	cautious := ""
	if chipOf(best.gpu) != chipOf(gpu) {
		for _, r := range rows {
			if x, y := shares(r), shares(best); x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && r.value > best.value && !capped(r.gpu) {
				best = r
			}
		}
		cautious = ", the slowest that is like it"
	}
	words := func(moe, flash bool) string {
		kind, attention := "dense", "attention that writes its scores"
		if moe {
			kind = "with experts"
		}
		if flash {
			attention = "flash attention"
		}
		return kind + ", " + attention
	}
	from := fmt.Sprintf("median of %d measured steps of %d models, %s on %s in %s, %s",
		best.points, best.models, best.framework, best.gpu, best.dtype, words(best.moe, best.flash))
	if best.pool != "" {
		from += fmt.Sprintf("; fewer than three models of that were measured, so the steps are of %s", best.pool)
	}
	if shares(best) != [6]bool{true, true, true, true, true, true} {
		from += cautious + fmt.Sprintf("; nothing was measured for %s on %s in %s, %s", f, gpu, dtype, words(moe, flash))
	}
	return best.value, from
}

// capped reports whether a point's GPU ran below the power limit of its kind.
func capped(gpu string) bool { return strings.HasSuffix(gpu, "00W") }

// median of values; 0 of none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
