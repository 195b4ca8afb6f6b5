package engine

import (
	"encoding/base64"
	"math"
	"strings"

	"github.com/weft-fabric/weft/predict/sim"
)

// octets are small numbers, written as bytes in base64.
type octets []uint8

func (list octets) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, list), nil
}

// linkSteps are the steps of time for which each link's load is told.
const linkSteps = 120

// linkLoad gives each busy link its load over time: a row of linkSteps values, as 255ths of its rate. Thousands of links do
// the same, so that rows are few and links name theirs.
//
// The simulation counts the bytes of every link exactly, over the whole time. When they passed is known from the messages in
// the trace, along the routes that are drawn. A link's curve has their shape, scaled so that its mean is the counted one. A
// link that no drawn message passes has the shape of its tier.
func (t *trace) linkLoad(list []busy, nodes int, total int64) octets {
	if t.Cut || len(list) == 0 {
		return nil
	}
	at := make(map[int]int, len(list))
	for i, b := range list {
		at[b.A*nodes+b.B] = i
	}
	sums := make([]float64, len(list)*linkSteps)
	members := len(t.Members)
	for pair, curve := range t.pairCurves(total) {
		for m := range members {
			from, to := t.Starts[pair*members+m], t.Starts[pair*members+m+1]
			for k := from; k+1 < to; k++ {
				if i, ok := at[int(t.Routes[k])*nodes+int(t.Routes[k+1])]; ok {
					add(sums[i*linkSteps:(i+1)*linkSteps], curve)
				}
			}
		}
	}
	return t.rows(list, sums)
}

// rows writes every curve once, and gives each link the number of its own.
func (t *trace) rows(list []busy, sums []float64) (out octets) {
	known, one := map[string]int{}, make(octets, linkSteps)
	for i, b := range list {
		row := sums[i*linkSteps : (i+1)*linkSteps]
		if mean(row) == 0 {
			t.tierCurve(b.tier, row)
		}
		scaled(one, row, b.Share)
		n, ok := known[string(one)]
		if !ok {
			n = len(known)
			known[string(one)] = n
			out = append(out, one...)
		}
		list[i].Row = n
	}
	return out
}

// scaled writes a curve whose mean is a share, as parts of 255.
func scaled(to octets, curve []float64, share float64) {
	scale := 0.0
	if m := mean(curve); m > 0 {
		scale = share / m
	}
	for s, v := range curve {
		to[s] = uint8(math.Round(255 * min(1, v*scale)))
	}
}

// pairCurves are the bytes under way in each step of time, by pair of ranks.
func (t *trace) pairCurves(total int64) [][]float64 {
	out := make([][]float64, len(t.passes))
	for i, pair := range t.Pair {
		if pair < 0 {
			continue
		}
		if out[pair] == nil {
			out[pair] = make([]float64, linkSteps)
		}
		t.spread(i, total, out[pair])
	}
	return out
}

// tierCurve fills a row with the load of its tier, or evenly where the tier has none.
func (t *trace) tierCurve(tier sim.Tier, row []float64) {
	for i, name := range t.LoadTiers {
		if name != tier.String() {
			continue
		}
		for s := range row {
			row[s] = t.Load[i][s*loadSteps/linkSteps]
		}
	}
	if mean(row) == 0 {
		for s := range row {
			row[s] = 1
		}
	}
}

func add(sum, more []float64) {
	for s, v := range more {
		sum[s] += v
	}
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	return sum / float64(len(list))
}

// limiting finds the link that a result names as its limit; -1 if it names none of them.
func limiting(limit string, list []busy) int {
	for i, b := range list {
		if strings.HasPrefix(limit, b.name+" (") {
			return i
		}
	}
	return -1
}
