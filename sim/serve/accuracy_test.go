package serve

import (
	_ "embed"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/plan"
	"github.com/weft-fabric/weft/work"
)

var (
	explore = flag.Bool("explore", false, "print every measured point")
	eager   = flag.Float64("eager", 0, "")
	turn    = flag.Float64("turn", 0, "")
	chunkF  = flag.Int("chunkf", 8192, "")
	every   = flag.Int("every", 1, "take every so many points")
	pick    = flag.String("pick", "", "take points whose class has this in it")
)

//go:embed points.csv
var pointsText string

type point struct {
	engine, month, model, gpu, weights string
	input, output, users, tp, dp, ep   int
	ttft, tpot                         float64
	gotFirst, gotToken                 float64
	full                               bool
	compute                            float64
	err                                error
}

func (p *point) class() string { return p.engine + " " + p.gpu + " " + p.weights }

func points(t testing.TB) []*point {
	var all []*point
	for _, line := range strings.Split(strings.TrimSpace(pointsText), "\n")[1:] {
		c := strings.Split(line, ",")
		n := func(i int) int {
			v, err := strconv.Atoi(c[i])
			if err != nil {
				t.Fatal(line)
			}
			return v
		}
		x := func(i int) float64 {
			v, err := strconv.ParseFloat(c[i], 64)
			if err != nil {
				t.Fatal(line)
			}
			return v
		}
		all = append(all, &point{engine: c[0], month: c[1], model: c[2], gpu: c[3], weights: c[4], input: n(5), output: n(6), users: n(7), tp: n(8), dp: n(9), ep: n(10), ttft: x(11) / 1e3, tpot: x(12) / 1e3})
	}
	return all
}

var machines = map[string]*plan.Machine{}

func machineOf(t testing.TB, gpu string) *plan.Machine {
	if m := machines[gpu]; m != nil {
		return m
	}
	name := "dgx-" + gpu
	text := "name: x\nhosts:\n  n0: " + name + "\n"
	if strings.HasPrefix(gpu, "gb") {
		text = "name: x\nhosts:\n  \"n[0-17]\": " + gpu + "\nnvlink: nvl72\n"
	}
	c, err := cluster.Parse("x", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := plan.NewMachine(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	machines[gpu] = m
	return m
}

var engines = map[string]*Engine{}

func TestMatrix(t *testing.T) {
	if !*explore {
		t.Skip()
	}
	f, _ := os.Create("/tmp/plan/matrix.csv")
	defer f.Close()
	for _, turnV := range []float64{.015, .04} {
		for _, eagerV := range []float64{.0002, .0005} {
			for _, chunk := range []int{4096, 8192} {
				*turn, *eager, *chunkF = turnV, eagerV, chunk
				for _, e := range engines {
					e.Habits.Turn, e.Habits.Eager, e.Chunk = turnV, eagerV, chunk
				}
				for i, p := range points(t) {
					if i%*every != 0 {
						continue
					}
					for _, factor := range []float64{.9, 1, 1.1} {
						for _, compute := range []float64{1, 1.2, 1.4, 1.7} {
							p.err = nil
							p.compute = compute
							p.run(t, factor)
							if p.err == nil {
								fmt.Fprintf(f, "%d,%s,%s,%s,%s,%s,%d,%d,%d,%d,%g,%g,%d,%g,%g,%v,%.5f,%.5f,%.5f,%.5f\n", i, p.engine, p.gpu, p.weights, p.model, p.month, p.tp, p.users, p.input, p.output, turnV, eagerV, chunk, factor, compute, p.full, p.gotFirst, p.ttft, p.gotToken, p.tpot)
							}
						}
					}
				}
			}
		}
	}
}

func (p *point) run(t testing.TB, factor float64) {
	mc := machineOf(t, p.gpu)
	m, err := work.Named(p.model)
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprint(p.model, p.gpu, p.weights, p.tp, p.dp, p.ep, p.engine)
	e := engines[key]
	if e == nil {
		h := Habits{Eager: *eager, Turn: *turn, PromptsFirst: p.engine == "sglang"}
		e = &Engine{Habits: h, Model: m, Machine: mc, Weights: p.weights, KV: "bf16", Chunk: *chunkF, Memory: .9, Layout: Layout{TP: p.tp, PP: 1, DP: p.dp, EP: p.ep, Replicas: 1}}
		if p.weights != "bf16" && p.model != "deepseek-v3" && (p.engine == "trtllm" || p.engine == "vllm" && strings.Contains(p.gpu, "b")) {
			e.KV = "fp8"
		}
		e.steps, e.products = map[Work]float64{}, map[[3]float64]float64{}
		engines[key] = e
	}
	e.Factor, e.Compute = factor, p.compute
	load := Load{Concurrency: p.users, Input: p.input, Output: p.output, Requests: 10 * p.users, Seed: 1}
	if p.month != "" {
		load.Spread = .2
	}
	r, err := Run(*e, load)
	if err != nil {
		p.err = err
		return
	}
	p.gotFirst, p.gotToken, p.full = r.TTFT.Mean, r.TPOT.Mean, strings.HasPrefix(r.Limit, "KV")
}

func mid(v []float64) (m, p90 float64) {
	if len(v) == 0 {
		return math.NaN(), math.NaN()
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2], v[len(v)*9/10]
}

func TestExplore(t *testing.T) {
	if !*explore {
		t.Skip()
	}
	type sum struct{ a, b, ra, rb []float64 }
	by := map[string]*sum{}
	for i, p := range points(t) {
		if i%*every != 0 || *pick != "" && !strings.Contains(p.class()+" "+p.model, *pick) {
			continue
		}
		p.run(t, 1)
		key := p.class() + " " + p.model
		if p.month == "" {
			key += " fixed"
		}
		if by[key] == nil {
			by[key] = &sum{}
		}
		s := by[key]
		if p.err != nil {
			fmt.Fprintln(os.Stderr, key, p.err)
			continue
		}
		s.rb = append(s.rb, math.Log(p.gotToken/p.tpot))
		if !p.full {
			s.ra = append(s.ra, math.Log(p.gotFirst/p.ttft))
		}
		if *pick != "" {
			fmt.Printf("%s %s tp %d dp %d ep %d %d/%d users %d: first %.0f of %.0f ms (%+.0f%%), token %.1f of %.1f (%+.0f%%) full %v\n", key, p.month, p.tp, p.dp, p.ep, p.input, p.output, p.users, 1e3*p.gotFirst, 1e3*p.ttft, 100*(p.gotFirst/p.ttft-1), 1e3*p.gotToken, 1e3*p.tpot, 100*(p.gotToken/p.tpot-1), p.full)
		}
	}
	var keys []string
	for k := range by {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		s := by[k]
		abs := func(v []float64) ([]float64, float64) {
			m, _ := mid(v)
			var o []float64
			for _, x := range v {
				o = append(o, math.Abs(math.Exp(x-m)-1))
			}
			return o, m
		}
		a, ma := abs(s.ra)
		b, mb := abs(s.rb)
		a5, a9 := mid(a)
		b5, b9 := mid(b)
		fmt.Printf("%-42s n %3d token bias %.2f, around it %4.1f / %4.1f%%; first bias %.2f, around it %4.1f / %4.1f%% (%d)\n", k, len(s.rb), math.Exp(mb), 100*b5, 100*b9, math.Exp(ma), 100*a5, 100*a9, len(a))
	}
}
