package model

import (
	"hash/fnv"
	"math"
)

// start is how a parameter begins: ones, or normal numbers of a deviation (zero
// deviation: zeros).
type start struct {
	ones      bool
	deviation float64
}

// Fill writes the initial values of every parameter into the flat buffer p. An
// element's value is a function of seed, the parameter's name and the element's
// place in the whole parameter.
func (n *Net) Fill(p []float32, seed uint64) {
	for _, q := range n.Params {
		out := p[q.At:][:q.Len()]
		switch {
		case q.start.ones:
			for i := range out {
				out[i] = 1
			}
		case q.start.deviation == 0:
			clear(out)
		default:
			h := fnv.New64a()
			h.Write([]byte(q.Name))
			key := mix(seed ^ mix(h.Sum64()))
			q.places(func(local, whole, count int) {
				for i := range count {
					out[local+i] = float32(q.start.deviation * normal(key, uint64(whole+i)))
				}
			})
		}
	}
}

// places calls f for every run of elements that follow one another both in the
// box and in the whole: their places there, and their number.
func (p Param) places(f func(local, whole, count int)) {
	axes := len(p.Size)
	run := p.Size[axes-1]
	if p.Len() == 0 {
		return
	}
	index := make([]int, axes)
	for local := 0; local < p.Len(); local += run {
		whole := 0
		for a := range axes {
			whole = whole*p.Shape[a] + p.Offset[a] + index[a]
		}
		f(local, whole, run)
		for a := axes - 2; a >= 0; a-- {
			if index[a]++; index[a] < p.Size[a] {
				break
			}
			index[a] = 0
		}
	}
}

// mix is a bijection that spreads every bit over all others (the finalizer of
// splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// normal is the i-th normal number of a key (Box and Muller's transformation).
func normal(key, i uint64) float64 {
	a, b := mix(key+2*i), mix(key+2*i+1)
	u := (float64(a>>11) + 1) / (1 << 53) // in (0, 1]
	v := float64(b>>11) / (1 << 53)
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}
