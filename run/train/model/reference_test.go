package model_test

import (
	"math"
	"strings"

	"github.com/weft-fabric/weft/run/train/model"
)

// The reference: every unit's forward in float64, written as its formula says, an
// element at a time. Its derivatives are taken by differences.

type reference struct {
	c       model.Config
	samples int
	tokens  []byte
	p       map[string][]float64 // by the last parts of a name: "qkv.weight"
}

func (f *reference) norm(x [][]float64) [][]float64 {
	gain, bias := f.p["norm.gain"], f.p["norm.bias"]
	out := make([][]float64, len(x))
	for r, row := range x {
		var mean, variance float64
		for _, v := range row {
			mean += v / float64(len(row))
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / float64(len(row))
		}
		for j, v := range row {
			out[r] = append(out[r], (v-mean)/math.Sqrt(variance+1e-5)*gain[j]+bias[j])
		}
	}
	return out
}

// linear is x w' + bias, w by rows.
func linear(x [][]float64, w, bias []float64) [][]float64 {
	out := make([][]float64, len(x))
	for r, row := range x {
		for o := 0; o < len(w)/len(row); o++ {
			var sum float64
			if bias != nil {
				sum = bias[o]
			}
			for j, v := range row {
				sum += v * w[o*len(row)+j]
			}
			out[r] = append(out[r], sum)
		}
	}
	return out
}

func add(x, y [][]float64) [][]float64 {
	out := make([][]float64, len(x))
	for r := range x {
		for j := range x[r] {
			out[r] = append(out[r], x[r][j]+y[r][j])
		}
	}
	return out
}

// unit gives a unit's output, and the sum of cross-entropies of the head.
func (f *reference) unit(name string, x [][]float64) (out [][]float64, loss float64) {
	c := f.c
	switch {
	case name == "embed" && c.Kind == model.GPT:
		for s := range f.samples {
			for t := range c.Context {
				row := make([]float64, c.Width)
				for j := range row {
					row[j] = f.p["token"][int(f.tokens[s*(c.Context+1)+t])*c.Width+j] + f.p["position"][t*c.Width+j]
				}
				out = append(out, row)
			}
		}
	case name == "embed":
		width := len(f.p["token"]) / c.Vocab
		var joined [][]float64
		for s := range f.samples {
			var row []float64
			for t := range c.Context {
				row = append(row, f.p["token"][int(f.tokens[s*(c.Context+1)+t])*width:][:width]...)
			}
			joined = append(joined, row)
		}
		out = linear(joined, f.p["weight"], f.p["bias"])
	case strings.HasSuffix(name, "mlp"):
		h := linear(f.norm(x), f.p["in.weight"], f.p["in.bias"])
		for _, row := range h {
			for j, v := range row {
				row[j] = 0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
			}
		}
		out = add(x, linear(h, f.p["out.weight"], f.p["out.bias"]))
	case strings.HasSuffix(name, "attention"):
		qkv := linear(f.norm(x), f.p["qkv.weight"], f.p["qkv.bias"])
		size := c.Width / c.Heads
		read := make([][]float64, len(x))
		for s := range f.samples {
			for t := range c.Context {
				at := s*c.Context + t
				read[at] = make([]float64, c.Width)
				for h := range c.Heads {
					var weights []float64
					var total float64
					for u := 0; u <= t; u++ {
						var score float64
						for j := range size {
							score += qkv[at][h*size+j] * qkv[s*c.Context+u][c.Width+h*size+j]
						}
						weights = append(weights, math.Exp(score/math.Sqrt(float64(size))))
						total += weights[u]
					}
					for u := 0; u <= t; u++ {
						for j := range size {
							read[at][h*size+j] += weights[u] / total * qkv[s*c.Context+u][2*c.Width+h*size+j]
						}
					}
				}
			}
		}
		out = add(x, linear(read, f.p["out.weight"], f.p["out.bias"]))
	case name == "head":
		for r, row := range linear(f.norm(x), f.p["weight"], nil) {
			sample, at := r, c.Context-1
			if c.Kind == model.GPT {
				sample, at = r/c.Context, r%c.Context
			}
			var total float64
			for _, v := range row {
				total += math.Exp(v)
			}
			loss += math.Log(total) - row[f.tokens[sample*(c.Context+1)+at+1]]
		}
	}
	return out, loss
}
