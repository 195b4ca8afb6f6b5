// Package data is what a training run reads: a text cut into windows of bytes, and
// the order they are read in.
//
// The order is a function of seed and position alone: position i of the run reads
// window i mod n of a permutation that every epoch (n positions) has its own of.
// Nothing is stored but the position, so that a run resumes exactly where it was,
// and however many ranks share a global batch, it holds the same samples.
package data

import (
	"fmt"
	"hash/fnv"
	"math/bits"
)

// Text is a text as windows of context+1 bytes: the input and, moved on by one,
// the targets. Windows begin context bytes apart, so that every byte but the first
// is a target once an epoch.
type Text struct {
	bytes   []byte
	context int
}

// NewText cuts a text. It needs context+1 bytes at least.
func NewText(b []byte, context int) (*Text, error) {
	if context < 1 {
		return nil, fmt.Errorf("data: context is %d; it is at least 1", context)
	}
	if len(b) < context+1 {
		return nil, fmt.Errorf("data: a text of %d bytes has no window of context %d and a target; it needs %d", len(b), context, context+1)
	}
	return &Text{bytes: b, context: context}, nil
}

// Len is the number of windows.
func (t *Text) Len() int { return (len(t.bytes) - 1) / t.context }

// Window is the i-th window; it is not a copy.
func (t *Text) Window(i int) []byte { return t.bytes[i*t.context:][:t.context+1] }

// Digest tells texts, and windows over them, apart.
func (t *Text) Digest() uint64 {
	h := fnv.New64a()
	h.Write(t.bytes)
	fmt.Fprintf(h, "/%d", t.context)
	return h.Sum64()
}

// Order is the order in which n samples are read, epoch after epoch.
type Order struct {
	n    uint64
	seed uint64
	half uint // bits of one half of the permutation's domain, which is the next even power of two
}

// NewOrder gives the order of n samples, at least one, for a seed.
func NewOrder(n int, seed uint64) Order {
	if n < 1 {
		panic(fmt.Sprintf("data: order of %d samples", n))
	}
	return Order{n: uint64(n), seed: seed, half: uint(bits.Len64(uint64(n-1))+1) / 2}
}

// At is the sample at a position of the run.
func (o Order) At(position uint64) int {
	epoch := position / o.n
	x := position % o.n
	// A Feistel network permutes the domain; what falls outside of the samples is
	// permuted again until it does not, which keeps it a permutation of them.
	for {
		x = o.permute(epoch, x)
		if x < o.n {
			return int(x)
		}
	}
}

func (o Order) permute(epoch, x uint64) uint64 {
	mask := uint64(1)<<o.half - 1
	left, right := x>>o.half&mask, x&mask
	for round := range uint64(6) {
		left, right = right, left^mix(mix(o.seed^mix(epoch))+round<<32+right)&mask
	}
	return left<<o.half | right
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Share is the part [lo, hi) of a batch that a rank of ranks reads: parts follow one
// another without gap or overlap, and differ by one sample at most.
func Share(batch, rank, ranks int) (lo, hi int) {
	return rank * batch / ranks, (rank + 1) * batch / ranks
}
