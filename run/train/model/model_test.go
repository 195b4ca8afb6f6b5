package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/run/train/model"
)

func small(kind model.Kind) model.Config {
	return model.Config{Kind: kind, Vocab: 11, Context: 5, Width: 8, Heads: 2, Hidden: 12, Layers: 2}
}

func noise(r *rand.Rand, n int, size float64) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(r.NormFloat64() * size)
	}
	return s
}

func doubles(s []float32) []float64 {
	d := make([]float64, len(s))
	for i, v := range s {
		d[i] = float64(v)
	}
	return d
}

func rows(x []float64, width int) [][]float64 {
	var out [][]float64
	for ; len(x) > 0; x = x[width:] {
		out = append(out, x[:width])
	}
	return out
}

// last drops the unit from a parameter's name.
func last(unit, name string) string { return strings.TrimPrefix(name, unit+".") }

// Every unit's forward against its formula in float64, and its backward against
// differences of that formula, for every parameter and input.
func TestUnitsAgainstTheirFormulas(t *testing.T) {
	for _, kind := range []model.Kind{model.GPT, model.MLP} {
		c := small(kind)
		net, err := model.New(c, model.Shard{}, 16)
		if err != nil {
			t.Fatal(err)
		}
		for i, u := range net.Units {
			if strings.HasPrefix(u.Name(), "layer1") {
				continue
			}
			t.Run(string(kind)+"/"+u.Name(), func(t *testing.T) {
				r := rand.New(rand.NewPCG(5, uint64(i)))
				const samples = 3
				tokens := make([]byte, samples*(c.Context+1))
				for i := range tokens {
					tokens[i] = byte(r.IntN(c.Vocab))
				}
				size := c.Rows(samples) * c.Width
				span := net.Spans[i]
				p, x, up := noise(r, span.Len(), 0.5), noise(r, size, 1), noise(r, size, 1)
				keep := noise(r, u.Keep(samples), 1)
				head := u.Name() == "head"

				env := &model.Env{Samples: samples, Tokens: tokens, Scale: 1}
				out := slices.Clone(x)
				if err := u.Forward(env, p, out, keep); err != nil {
					t.Fatal(err)
				}
				g, dx := make([]float32, len(p)), slices.Clone(up)
				if err := u.Backward(env, p, g, dx, keep); err != nil {
					t.Fatal(err)
				}

				ref := &reference{c: c, samples: samples, tokens: tokens, p: map[string][]float64{}}
				type place struct {
					name string
					at   int
				}
				var params []place
				for _, q := range net.Params {
					if q.At >= span.Lo && q.At < span.Hi {
						name := last(u.Name(), q.Name)
						ref.p[name] = doubles(p[q.At-span.Lo:][:q.Len()])
						params = append(params, place{name, q.At - span.Lo})
					}
				}
				x64 := doubles(x)
				// value is what backward takes the gradient of.
				value := func() float64 {
					y, loss := ref.unit(u.Name(), rows(x64, c.Width))
					if head {
						return loss
					}
					var sum float64
					for r := range y {
						for j, v := range y[r] {
							sum += v * float64(up[r*c.Width+j])
						}
					}
					return sum
				}
				if y, loss := ref.unit(u.Name(), rows(x64, c.Width)); head {
					if math.Abs(env.Loss-loss) > 1e-4*loss {
						t.Errorf("loss is %v, by formula %v", env.Loss, loss)
					}
				} else {
					for i, v := range out {
						if want := y[i/c.Width][i%c.Width]; math.Abs(float64(v)-want) > 1e-5*(1+math.Abs(want)) {
							t.Fatalf("output %d is %v, by formula %v", i, v, want)
						}
					}
				}
				check := func(what string, at *float64, got float32) {
					const h = 1e-5
					before := *at
					*at = before + h
					above := value()
					*at = before - h
					below := value()
					*at = before
					want := (above - below) / (2 * h)
					if math.Abs(float64(got)-want) > 2e-4*(1+math.Abs(want)) {
						t.Errorf("gradient of %s is %v, by differences %v", what, got, want)
					}
				}
				for _, q := range params {
					values := ref.p[q.name]
					for i := range values {
						check(fmt.Sprintf("%s[%d]", q.name, i), &values[i], g[q.at+i])
					}
				}
				if i > 0 {
					for j := range x64 {
						check(fmt.Sprintf("input %d", j), &x64[j], dx[j])
					}
				}
			})
		}
	}
}

// Backward adds to gradients that are there already.
func TestGradientsAccumulate(t *testing.T) {
	c := small(model.GPT)
	net, _ := model.New(c, model.Shard{}, 1)
	p := make([]float32, net.Len)
	net.Fill(p, 1)
	r := rand.New(rand.NewPCG(1, 1))
	once, twice := make([]float32, net.Len), make([]float32, net.Len)
	tokens := make([]byte, 2*(c.Context+1))
	for i := range tokens {
		tokens[i] = byte(r.IntN(c.Vocab))
	}
	run := func(g []float32) {
		env := &model.Env{Samples: 2, Tokens: tokens, Scale: 1}
		x := make([]float32, c.Rows(2)*c.Width)
		var kept [][]float32
		for i, u := range net.Units {
			kept = append(kept, make([]float32, u.Keep(2)))
			u.Forward(env, p[net.Spans[i].Lo:net.Spans[i].Hi], x, kept[i])
		}
		for i := len(net.Units) - 1; i >= 0; i-- {
			s := net.Spans[i]
			net.Units[i].Backward(env, p[s.Lo:s.Hi], g[s.Lo:s.Hi], x, kept[i])
		}
	}
	run(once)
	run(twice)
	run(twice)
	for i := range once {
		if want := 2 * once[i]; math.Abs(float64(twice[i]-want)) > 1e-4*(1e-2+math.Abs(float64(want))) {
			t.Fatalf("gradient %d is %v after two passes, %v after one", i, twice[i], once[i])
		}
	}
}

// The boxes of all ranks of a layout tile every parameter, and hold the values of
// the whole network.
func TestShardsTileTheWhole(t *testing.T) {
	for _, c := range []model.Config{model.Tiny(), model.TinyMLP()} {
		whole, err := model.New(c, model.Shard{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		p := make([]float32, whole.Len)
		whole.Fill(p, 42)
		for _, tensors := range []int{1, 2, 4} {
			for _, stages := range []int{1, 2} {
				seen := map[string]int{}
				for rank := range tensors * stages {
					net, err := model.New(c, model.Shard{Tensor: rank % tensors, Tensors: tensors, Stage: rank / tensors, Stages: stages}, 48)
					if err != nil {
						t.Fatal(err)
					}
					q := make([]float32, net.Len)
					net.Fill(q, 42)
					for _, s := range net.Spans {
						if s.Lo%48 != 0 || s.Hi%48 != 0 {
							t.Errorf("span %v is not aligned", s)
						}
					}
					for _, par := range net.Params {
						i := slices.IndexFunc(whole.Params, func(q model.Param) bool { return q.Name == par.Name })
						if i < 0 || !slices.Equal(whole.Params[i].Shape, par.Shape) {
							t.Fatalf("%s of shape %v is not in the whole", par.Name, par.Shape)
						}
						full := whole.Params[i]
						if !par.Copy || rank%tensors == 0 {
							seen[par.Name] += par.Len()
						}
						for i := range par.Len() {
							at, rest := 0, i
							index := make([]int, len(par.Size))
							for a := len(par.Size) - 1; a >= 0; a-- {
								index[a] = rest%par.Size[a] + par.Offset[a]
								rest /= par.Size[a]
							}
							for a, n := range index {
								at = at*par.Shape[a] + n
							}
							if q[par.At+i] != p[full.At+at] {
								t.Fatalf("%s element %d of rank %d is %v, in the whole %v", par.Name, i, rank, q[par.At+i], p[full.At+at])
							}
						}
					}
				}
				for _, par := range whole.Params {
					if seen[par.Name] != par.Len() {
						t.Errorf("%d x %d: %s has %d elements on all ranks, %d in the whole", tensors, stages, par.Name, seen[par.Name], par.Len())
					}
				}
			}
		}
	}
}

func TestSizesThatDoNotFit(t *testing.T) {
	gpt := model.Tiny()
	change := func(f func(c *model.Config)) model.Config {
		c := gpt
		f(&c)
		return c
	}
	for _, v := range []struct {
		c    model.Config
		s    model.Shard
		want string
	}{
		{change(func(c *model.Config) { c.Kind = "rnn" }), model.Shard{}, "known: gpt, mlp"},
		{change(func(c *model.Config) { c.Width = 0 }), model.Shard{}, "width is 0"},
		{change(func(c *model.Config) { c.Vocab = 300 }), model.Shard{}, "at most 256"},
		{change(func(c *model.Config) { c.Heads = 5 }), model.Shard{}, "5 heads do not divide the width 32"},
		{gpt, model.Shard{Tensors: 3}, "take one of 1, 2, 4"},
		{model.TinyMLP(), model.Shard{Tensors: 3}, "hidden width 64"},
		{gpt, model.Shard{Stages: 3}, "2 layers make at most as many stages"},
		{gpt, model.Shard{Tensor: 2, Tensors: 2}, "tensor rank 2 of 2"},
	} {
		if _, err := model.New(v.c, v.s, 1); err == nil || !strings.Contains(err.Error(), v.want) {
			t.Errorf("error is %v, want one with %q", err, v.want)
		}
	}
}

// The sizes that the comments name.
func TestNamedSizes(t *testing.T) {
	for name, v := range map[string]struct {
		c    model.Config
		want int
	}{"small": {model.Small(), 867_000}, "tiny": {model.Tiny(), 34_000}} {
		net, err := model.New(v.c, model.Shard{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(float64(net.Total-v.want)) > 0.01*float64(v.want) {
			t.Errorf("%s has %d parameters, its comment says about %d", name, net.Total, v.want)
		}
	}
}
