// Package kernel says how long the kernels of a transformer take on one GPU: matrix products,
// attention over a prompt, attention of one new token, and whatever is bound by memory.
//
// A time has two parts. A closed form knows the machine: waves of tiles over the multiprocessors,
// bytes over the memory, a launch. What it misses is taken from measured kernels of the same
// generation: the logarithm of measured over formula, averaged over the points nearest in shape.
//
//	shape ─► formula (peak, memory, waves) ─► x correction from the nearest measured shapes ─► time
//	                                            └─ far from all of them it fades to 1
//
// The measured points are those that ai-dynamo/aiconfigurator publishes (Apache-2.0): TensorRT-LLM
// kernels on A100, H100 and B200. Sister chips keep the correction and bring their own peak,
// memory and multiprocessors to the formula.
package kernel

import (
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/model/topo/catalog"
)

//go:embed gemm.csv
var gemmText string

//go:embed prefill.csv
var prefillText string

//go:embed decode.csv
var decodeText string

// Chip is what the formulas need of a GPU.
type Chip struct {
	Name  string
	Table string  // whose measured kernels stand for it: a100, h100, b200
	SMs   float64 // multiprocessors
	HBM   float64 // bytes a second
	Peak  map[string]float64
	Far   bool // no chip of its generation was measured
	Ultra bool // Blackwell Ultra: twice the exponentials a clock
	reach map[string]float64
}

// best is the share of a chip's peak that its fastest product reaches, as others measured it. Chips that draw all their power in a product
// run it far below the clock that the peak is stated for.
var best = map[string]map[string]float64{
	"A100-SXM-80GB": {"bf16": 271.2 / 312}, // Bekman, ml-engineering: the best of many shapes; so are the next six
	"A100-PCIe":     {"bf16": 252.9 / 312},
	"H100-SXM":      {"bf16": 794.5 / 989.4, "fp8": 1402.6 / 1978.9},
	"GH200":         {"bf16": 828.6 / 989.4, "fp8": 1535.0 / 1978.9},
	"B200":          {"bf16": 1745.0 / 2250, "fp8": 3432.5 / 4500},
	"GB200":         {"bf16": 1822.0 / 2500, "fp8": 3615.6 / 5000},
	"B300":          {"bf16": 1769.0 / 2250, "fp8": 3353.3 / 4500},
	"MI300X":        {"bf16": 708.0 / 1307.4, "fp8": 1273.0 / 2614.9}, // AMD, Measuring Max-Achievable FLOPs, 2025: 1.2 of 2.1 GHz under load
	"MI325X":        {"bf16": 843.0 / 1307.4, "fp8": 1519.0 / 2614.9}, // the same
	"V100-SXM":      {"bf16": 83.0 / 112},                             // Markidis et al. 2018, on a V100 with a peak of 112
	"V100-SXM-16GB": {"bf16": 83.0 / 112},
	"V100-PCIe":     {"bf16": 83.0 / 112},
}

// standard is the chip whose kernels a table holds.
var standard = map[string]string{"a100": "A100-SXM-80GB", "h100": "H100-SXM", "b200": "B200"}

// Reach is how much of its peak a chip reaches, over what the chip of its table does. It is 1 where nobody measured it.
func (c Chip) Reach(t Type) float64 {
	if t == "fp8block" || t == "fp4" {
		t = "fp8"
	}
	if r := c.reach[string(t)]; r > 0 {
		return r
	}
	return 1
}

// reachOf compares a chip with the standard of its table.
func reachOf(name, table string) map[string]float64 {
	out := map[string]float64{}
	own, as := best[name], best[standard[table]]
	for t, share := range own {
		if as[t] > 0 {
			out[t] = share / as[t]
		} else {
			out[t] = share / as["bf16"]
		}
	}
	return out
}

// multiprocessors by the catalogue's name.
var multiprocessors = map[string]float64{"P100-SXM": 56, "V100-SXM-16GB": 80, "V100-SXM": 80, "V100-PCIe": 80, "A10": 72, "RTX-4090": 128,
	"L40S": 142, "RTX-PRO-6000": 188, "H100-PCIe": 114, "H20": 78,
	"MI300X": 304, "MI325X": 304, "MI350X": 256, "MI355X": 256, "TPU-v4": 8}

// NewChip takes the facts of a GPU from the catalogue.
func NewChip(g catalog.GPU) Chip {
	c := Chip{Name: g.Name, HBM: float64(g.MemoryRate), Peak: map[string]float64{}, SMs: multiprocessors[g.Name]}
	for k, v := range g.Dense {
		c.Peak[k] = v
	}
	switch g.Arch {
	case "Pascal", "Volta", "Ampere":
		c.Table, c.Far = "a100", g.Arch != "Ampere" || g.Name == "A10"
	case "Hopper":
		c.Table = "h100"
	case "Blackwell":
		c.Table, c.Far = "b200", g.Name == "RTX-PRO-6000"
		c.Ultra = strings.HasSuffix(g.Name, "B300")
	default:
		c.Table, c.Far = "h100", true
	}
	if c.SMs == 0 {
		c.SMs = map[string]float64{"a100": 108, "h100": 132, "b200": 148}[c.Table]
	}
	if c.Peak["bf16"] == 0 {
		c.Peak["bf16"] = max(c.Peak["fp16"], c.Peak["fp32"])
	}
	c.reach = reachOf(c.Name, c.Table)
	return c
}

// Type is how numbers are held in a matrix product: bf16, fp8, fp8block, fp4.
type Type string

// peak is the FLOP/s of a type on a chip, and the type whose kernels stand for it there: a chip
// without the type computes in the next wider one.
func (c Chip) peak(t Type) (float64, Type) {
	switch t {
	case "fp4":
		if p := c.Peak["fp4"]; p > 0 {
			return p, t
		}
		return c.peak("fp8")
	case "fp8", "fp8block":
		if p := c.Peak["fp8"]; p > 0 && c.Table == "b200" { // no product scaled by blocks was measured there
			return p, "fp8"
		} else if p > 0 && c.Table != "a100" {
			return p, t
		}
		return c.peak("bf16")
	}
	return c.Peak["bf16"], "bf16"
}

// bytesOf is what a number takes in memory.
func bytesOf(t Type) float64 {
	switch t {
	case "fp8", "fp8block":
		return 1
	case "fp4":
		return 0.5625 // with a scale of a byte for 16
	}
	return 2
}

// gemmFit is the closed form of a generation and type, fitted to the measured points.
type gemmFit struct {
	eta  float64 // of the peak, in a full wave of the best tile
	etaB float64 // of the memory's rate
	t0   float64 // seconds: launch
	k0   float64 // steps of the inner loop lost at start and end of a tile
}

var gemmFits = map[string]gemmFit{
	"a100/bf16":     {.938, .778, 3.7e-6, 135},
	"h100/bf16":     {.852, .823, 2.8e-6, 112},
	"h100/fp8":      {.703, .827, 12.3e-6, 650},
	"h100/fp8block": {.609, .819, 5.1e-6, 504},
	"b200/bf16":     {.743, .736, 2.8e-6, 37},
	"b200/fp8":      {.583, .745, 15.3e-6, 254},
	"b200/fp4":      {.449, .469, 9.8e-6, 303},
}

var tiles = []struct{ m, n, w float64 }{{64, 64, .55}, {64, 128, .75}, {128, 128, .93}, {128, 256, 1}, {256, 128, 1}}

// gemmForm is the closed form: t0 + (compute^4 + memory^4)^(1/4), compute by whole waves of the
// best tile and the best split of the inner dimension.
func (c Chip) gemmForm(t Type, m, n, k float64) float64 {
	peak, t := c.peak(t)
	f, ok := gemmFits[c.Table+"/"+string(t)]
	if !ok {
		f = gemmFits[c.Table+"/bf16"]
	}
	b := bytesOf(t)
	mem := (b*(m*k+k*n) + 2*m*n) / (c.HBM * f.etaB)
	best := math.Inf(1)
	rate := peak / c.SMs * f.eta * c.Reach(t)
	for _, x := range tiles {
		grid := math.Ceil(m/x.m) * math.Ceil(n/x.n)
		for split := 1.0; split <= 8; split *= 2 {
			waves := math.Ceil(grid * split / c.SMs)
			best = min(best, waves*2*x.m*x.n*(k/split+f.k0)/(rate*x.w))
		}
	}
	return f.t0 + math.Sqrt(math.Sqrt(best*best*best*best+mem*mem*mem*mem))
}

// table is measured points as logarithms: coordinates and, by column, log(measured / formula).
type table struct {
	at  [][5]float64
	raw [][]float64 // the shape itself
	res map[string][]float64
	us  map[string][]float64
}

func parse(text string, keys int, form func(column string, shape []float64) float64) *table {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	head := strings.Split(lines[0], ",")
	t := &table{res: map[string][]float64{}, us: map[string][]float64{}}
	for _, line := range lines[1:] {
		cells := strings.Split(line, ",")
		shape := make([]float64, keys)
		var at [5]float64
		for i := range keys {
			shape[i], _ = strconv.ParseFloat(cells[i], 64)
			at[i] = math.Log2(shape[i])
		}
		t.at, t.raw = append(t.at, at), append(t.raw, shape)
		for j := keys; j < len(head); j++ {
			us, err := strconv.ParseFloat(cells[j], 64)
			r := math.NaN()
			if err == nil && us > 0 {
				r = math.Log(us * 1e-6 / form(head[j], shape))
			}
			t.res[head[j]] = append(t.res[head[j]], r)
			t.us[head[j]] = append(t.us[head[j]], us)
		}
	}
	return t
}

// reference is the chip that a table was measured on.
func reference(name string) Chip {
	c := catalog.Default()
	if g, ok := standard[name]; ok {
		gpu, _ := c.GPU(g)
		return NewChip(gpu)
	}
	panic("kernel: no chip " + name)
}

var tables = sync.OnceValue(func() (all struct{ gemm, prefill, decode *table }) {
	chips := map[string]Chip{}
	for _, n := range []string{"a100", "h100", "b200"} {
		chips[n] = reference(n)
	}
	of := func(column string) (Chip, Type) {
		name, t, _ := strings.Cut(column, "/")
		return chips[name], Type(t)
	}
	all.gemm = parse(gemmText, 3, func(col string, s []float64) float64 { c, t := of(col); return c.gemmForm(t, s[0], s[1], s[2]) })
	all.prefill = parse(prefillText, 5, func(col string, s []float64) float64 {
		c, t := of(col)
		return c.prefillForm(t, s[0], s[1], s[2], s[3], 128)
	})
	all.decode = parse(decodeText, 5, func(col string, s []float64) float64 {
		c, t := of(col)
		return c.decodeForm(t, s[0], s[2], s[3], s[4], 128)
	})
	return all
})

// smooth is how a correction is averaged.
type smooth struct {
	width [5]float64 // of the kernel, in doublings of each dimension
	prior float64    // weight of "no correction"
}

// correct averages the residuals near a point, leaving row skip out. It also gives the row nearest by.
func (t *table) correct(column string, at [5]float64, s smooth, skip int) (factor float64, nearest int, far float64) {
	res := t.res[column]
	nearest, far = -1, math.Inf(1)
	sum, weight := 0.0, s.prior
	for i, p := range t.at {
		if i == skip || math.IsNaN(res[i]) {
			continue
		}
		d := 0.0
		for j, w := range s.width {
			if w > 0 {
				x := (p[j] - at[j]) / w
				d += x * x
			}
		}
		if d < far {
			far, nearest = d, i
		}
		if d < 32 {
			w := math.Exp(-d / 2)
			sum += w * res[i]
			weight += w
		}
	}
	if weight == 0 {
		return 1, nearest, math.Sqrt(far)
	}
	return math.Exp(sum / weight), nearest, math.Sqrt(far)
}

var gemmSmooth = smooth{[5]float64{.45, .55, .55}, .03}

// GEMM is the time in seconds of a product of an m x k and a k x n matrix.
func (c Chip) GEMM(t Type, m, n, k float64) float64 {
	if m <= 0 || n <= 0 || k <= 0 {
		return 0
	}
	_, as := c.peak(t)
	f, _, _ := tables().gemm.correct(c.Table+"/"+string(as), [5]float64{math.Log2(m), math.Log2(n), math.Log2(k)}, gemmSmooth, -1)
	return c.gemmForm(t, m, n, k) * f
}

// Launch is what of a product's time is its start alone, as kernels were measured: the launch, and for narrow types a
// kernel of its own that quantises the input.
func (c Chip) Launch(t Type) float64 {
	_, as := c.peak(t)
	return gemmFits[c.Table+"/"+string(as)].t0
}

// Near names the measured product nearest to a shape, and how the model does there without it.
func (c Chip) Near(t Type, m, n, k float64) string {
	if c.Far {
		return fmt.Sprintf("no kernel was measured on %s or its sisters; %s stands for it", c.Name, c.Table)
	}
	_, as := c.peak(t)
	tab, col := tables().gemm, c.Table+"/"+string(as)
	_, i, _ := tab.correct(col, [5]float64{math.Log2(m), math.Log2(n), math.Log2(k)}, gemmSmooth, -1)
	if i < 0 {
		return "no measured kernel"
	}
	s := tab.raw[i]
	f, _, _ := tab.correct(col, tab.at[i], gemmSmooth, i)
	ref := reference(c.Table)
	model := ref.gemmForm(as, s[0], s[1], s[2]) * f
	return fmt.Sprintf("nearest measured: %s %s %.0fx%.0fx%.0f %.1f us, model without it %+.1f%%",
		c.Table, as, s[0], s[1], s[2], tab.us[col][i], 100*(model*1e6/tab.us[col][i]-1))
}

// attnFit is the closed form of attention over a prompt.
type attnFit struct{ eta, t0, s0 float64 }

var attnFits = map[string]attnFit{"a100/bf16": {.49, 3.6e-6, 596}, "h100/bf16": {.63, 12e-6, 1361}, "h100/fp8": {.76, 12e-6, 1361},
	"b200/bf16": {.53, 14e-6, 1722}, "b200/fp8": {.53, 14e-6, 1722}}

// exponents is what the exponential of one score costs, in numbers of a head's size. A multiprocessor computes 16 of them a clock, beside
// products of 2,048 pairs of numbers on Hopper and 4,096 on Blackwell, so that heads of 64 take more than half the time of heads of 128,
// which were measured: 0.67 of it on H100, where FlashAttention-3 reports 0.66. On A100, whose products take twice as long, most of it
// is hidden: FlashAttention-2 reports 0.55, and half is taken.
var exponents = map[string]float64{"h100": 64, "b200": 128}

// prefillForm is t0 + 2 b s (s + s0) a d / (peak eta occupancy), causal, for q new tokens after kv-q old ones.
func (c Chip) prefillForm(t Type, b, q, kv, a, d float64) float64 {
	f, ok := attnFits[c.Table+"/"+string(t)]
	if !ok {
		f = attnFits[c.Table+"/bf16"]
	}
	blocks := b * a * math.Ceil(q/128)
	occupancy := blocks / (c.SMs * math.Ceil(blocks/c.SMs))
	pairs := q*(2*kv-q) + q*f.s0
	if e := exponents[c.Table]; e > 0 {
		own := e
		if c.Ultra {
			own /= 2
		}
		d = 128 * (d + own) / (128 + e)
	}
	return f.t0 + 2*b*pairs*a*d/(c.Peak["bf16"]*f.eta*occupancy*c.Reach("bf16"))
}

var prefillSmooth = smooth{[5]float64{.7, .7, 0, .7, 2}, .03}

// Prefill is the time of causal attention of q new tokens over kv tokens, for b sequences, a heads of
// size d and k KV heads.
func (c Chip) Prefill(t Type, b, q, kv, a, k, d float64) float64 {
	if b <= 0 || q <= 0 || a <= 0 {
		return 0
	}
	_, as := c.peak(t)
	if as == "fp8block" || as == "fp4" {
		as = "fp8"
	}
	f, _, _ := tables().prefill.correct(c.Table+"/"+string(as), [5]float64{math.Log2(b), math.Log2(q), 0, math.Log2(a), math.Log2(max(k, 1))},
		prefillSmooth, -1)
	return c.prefillForm(as, b, q, kv, a, d) * f
}

// decodeForm is t0 + KV bytes / (memory eta), and the products where many heads share keys.
func (c Chip) decodeForm(t Type, b, kv, a, k, d float64) float64 {
	eta, t0 := .88, 11e-6
	if c.Table == "a100" {
		eta, t0 = .70, 18e-6
	}
	bytes := 2 * b * kv * k * d * bytesOf(t)
	return t0 + bytes/(c.HBM*eta) + 4*b*kv*a*d/(c.Peak["bf16"]*.35)
}

var decodeSmooth = smooth{[5]float64{.7, 0, .7, .7, .7}, .03}

// Decode is the time of attention of one new token for each of b sequences of kv tokens.
func (c Chip) Decode(t Type, b, kv, a, k, d float64) float64 {
	if b <= 0 || kv <= 0 || a <= 0 {
		return 0
	}
	_, as := c.peak(t)
	if as != "bf16" {
		as = "fp8"
	}
	f, _, _ := tables().decode.correct(c.Table+"/"+string(as), [5]float64{math.Log2(b), 0, math.Log2(kv), math.Log2(a), math.Log2(max(k, 1))},
		decodeSmooth, -1)
	return c.decodeForm(as, b, kv, a, k, d) * f
}

// Vector is the time of a kernel that only moves bytes.
func (c Chip) Vector(bytes float64) float64 {
	if bytes <= 0 {
		return 0
	}
	return 2e-6 + bytes/(c.HBM*.85)
}
