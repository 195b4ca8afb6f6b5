package kv

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Economy is what computing and reading blocks costs.
type Economy struct {
	Params float64 // of the model
	Layers int
	Width  int     // of the model
	Flops  float64 // a second, of the workers that would compute a block again
	Tokens int     // of a block
	Bytes  float64 // of a block
	Memory float64 // bytes a second at which a hit is read where it is nearest
}

// Llama70B is the economy of Llama 3 70B in bfloat16, blocks of the given number of tokens, eight H100 at half of 989 Tflop/s
// and pages read at 20 GB/s.
func Llama70B(tokens int) Economy {
	return Economy{Params: 70.6e9, Layers: 80, Width: 8192, Flops: 8 * 989e12 / 2, Tokens: tokens, Bytes: float64(tokens) * 327680,
		Memory: 20e9}
}

// Check reports what is wrong with an economy.
func (e Economy) Check() error {
	for _, f := range []struct {
		name  string
		value float64
	}{{"parameters", e.Params}, {"layers", float64(e.Layers)}, {"width", float64(e.Width)}, {"operations a second", e.Flops},
		{"tokens of a block", float64(e.Tokens)}, {"bytes of a block", e.Bytes}} {
		if !(f.value > 0) || math.IsInf(f.value, 1) {
			return fmt.Errorf("kv: %s: %g; want more than 0", f.name, f.value)
		}
	}
	return nil
}

// Recompute is the time to compute the block at a depth: two operations a parameter and token, and four a layer,
// column and earlier token for attention.
func (e Economy) Recompute(depth int) float64 {
	t := float64(e.Tokens)
	before := (float64(depth) + 0.5) * t
	return (2*e.Params*t + 4*float64(e.Layers)*float64(e.Width)*before*t) / e.Flops
}

// Value is what a hit at a depth saves: the time to compute it less the time to read it.
func (e Economy) Value(depth int) float64 {
	v := e.Recompute(depth)
	if e.Memory > 0 {
		v -= e.Bytes / e.Memory
	}
	return max(v, 0)
}

// Admission says which blocks a tier below the first takes.
type Admission string

// The admissions.
//
//	always  everything that the tier above has
//	second  what was used twice
//	worth   what is read faster than it is computed again
const (
	Always Admission = "always"
	Second Admission = "second"
	Worth  Admission = "worth"
)

// Tier is one kind of memory.
type Tier struct {
	Name   string
	Blocks int
	Policy Policy
	Admit  Admission
	Read   float64 // bytes a second; 0: at once
	Delay  float64 // seconds before the first byte
}

// ParseTiers reads "memory=1000,disk=20000:arc:second": names with their blocks, then, for each, a policy and an
// admission if they are not the ones given.
func ParseTiers(text string, policy Policy, admit Admission) ([]Tier, error) {
	var out []Tier
	for _, part := range strings.Split(text, ",") {
		words := strings.Split(part, ":")
		name, count, ok := strings.Cut(words[0], "=")
		t := Tier{Name: name, Policy: policy, Admit: admit}
		if _, err := fmt.Sscanf(count, "%d", &t.Blocks); !ok || err != nil || name == "" || t.Blocks < 1 || fmt.Sprint(t.Blocks) != count ||
			len(words) > 3 {
			return nil, fmt.Errorf("tier %q: want NAME=BLOCKS[:POLICY[:ADMISSION]], like memory=1000 or disk=20000:arc:second", part)
		}
		for _, w := range words[1:] {
			if w == "" {
				continue
			}
			if slices.Contains([]Admission{Always, Second, Worth}, Admission(w)) {
				t.Admit = Admission(w)
				continue
			}
			p, err := ParsePolicy(w)
			if err != nil {
				return nil, fmt.Errorf("tier %q: %w; or an admission: %s, %s, %s", part, err, Always, Second, Worth)
			}
			t.Policy = p
		}
		for _, o := range out {
			if o.Name == name {
				return nil, fmt.Errorf("tier %q is there twice", name)
			}
		}
		out = append(out, t)
	}
	return out, nil
}

// Tiers are caches one below the other, fast and small first. Each holds whole prefixes of its own; what is in a
// tier is usually in those below it, too, so that leaving the upper one costs nothing.
type Tiers struct {
	list  []Tier
	trees []*Tree
	cost  Economy
}

// NewTiers makes empty tiers.
func NewTiers(list []Tier, cost Economy, halfLife float64) (*Tiers, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("kv: no tier")
	}
	if err := cost.Check(); err != nil {
		return nil, err
	}
	if !(halfLife >= 0) || math.IsInf(halfLife, 1) {
		return nil, fmt.Errorf("kv: a half-life of %g; want 0 (uses never count less) or more", halfLife)
	}
	t := &Tiers{list: list, cost: cost}
	for _, x := range list {
		if x.Blocks < 1 {
			return nil, fmt.Errorf("kv: tier %s of %d blocks; want at least 1", x.Name, x.Blocks)
		}
		if _, err := ParsePolicy(string(x.Policy)); err != nil {
			return nil, fmt.Errorf("kv: tier %s: %w", x.Name, err)
		}
		t.trees = append(t.trees, NewTree(Options{Blocks: x.Blocks, Policy: x.Policy, HalfLife: halfLife, Value: cost.Value}))
	}
	return t, nil
}

// Tree is the tree of a tier, for locks.
func (t *Tiers) Tree(i int) *Tree { return t.trees[i] }

// Span is a run of a path's blocks and the tier that has them.
type Span struct{ Tier, From, To int }

// Lookup says which tier each block of a path is read from, the fastest that has it, as spans in the order of the
// path. They count as used.
func (t *Tiers) Lookup(path []Hash, now float64) []Span {
	var out []Span
	have := 0
	for i, tree := range t.trees {
		if n := tree.Match(path, now); n > have {
			out = append(out, Span{i, have, n})
			have = n
		}
	}
	return out
}

// Changes are what a Store does to the tiers.
type Changes struct {
	Put  []Span   // blocks that are now in a tier and have to be written there
	Gone [][]Hash // by tier: blocks that are no longer there
}

// Store takes a path whose blocks have been computed or read: into the first tier, and below as admitted.
func (t *Tiers) Store(path []Hash, now float64) (Changes, error) {
	c := Changes{Gone: make([][]Hash, len(t.trees))}
	for i, tree := range t.trees {
		take := path
		if i > 0 {
			take = path[:t.admits(i, path)]
		}
		if len(take) == 0 {
			continue
		}
		before := tree.Peek(take)
		have, gone, err := tree.Insert(take, now, nil)
		c.Gone[i] = gone
		if have > before {
			c.Put = append(c.Put, Span{i, before, have})
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// admits is how many blocks of a path a tier takes.
func (t *Tiers) admits(i int, path []Hash) int {
	switch x := t.list[i]; x.Admit {
	case Second:
		return t.trees[0].Used(path, 2)
	case Worth:
		// The longest prefix that is read faster than it is computed. Later blocks take longer to compute.
		read, compute, best := x.Delay, 0.0, 0
		for d := range path {
			if x.Read > 0 {
				read += t.cost.Bytes / x.Read
			}
			compute += t.cost.Recompute(d)
			if read < compute {
				best = d + 1
			}
		}
		return best
	}
	return len(path)
}

// Used is how many blocks at the beginning of a path were used that often.
func (t *Tree) Used(path []Hash, least int) int {
	n, in, depth := t.find(path)
	for depth > 0 && n.uses < least {
		depth -= in
		n = n.parent
		in = len(n.run)
	}
	return depth
}

// Absent remembers for a while which blocks are not there, so that a far store is not asked twice. It is bounded:
// the oldest are forgotten first.
type Absent struct {
	most  int
	keep  float64
	until map[Hash]float64
	queue []Hash
	head  int
}

// NewAbsent remembers up to most blocks, each for so long.
func NewAbsent(most int, keep float64) *Absent {
	return &Absent{most: max(most, 1), keep: keep, until: map[Hash]float64{}}
}

// Add says that a block is not there.
func (a *Absent) Add(h Hash, now float64) {
	if _, known := a.until[h]; !known {
		for len(a.until) >= a.most || a.head < len(a.queue) && a.until[a.queue[a.head]] <= now {
			delete(a.until, a.queue[a.head])
			if a.head++; a.head > a.most {
				a.queue, a.head = slices.Clone(a.queue[a.head:]), 0
			}
		}
		a.queue = append(a.queue, h)
	}
	a.until[h] = now + a.keep
}

// Has says whether a block is known not to be there.
func (a *Absent) Has(h Hash, now float64) bool { return now < a.until[h] }

// Remove says that a block is there now. It stays in the order of what is forgotten.
func (a *Absent) Remove(h Hash) {
	if _, known := a.until[h]; known {
		a.until[h] = math.Inf(-1)
	}
}

// Len is the number of blocks remembered.
func (a *Absent) Len() int { return len(a.until) }

// Worker is one that can answer a request.
type Worker struct {
	Name  string
	Queue float64 // seconds before it begins
	Have  int     // blocks of the request's path that it has
	Near  int     // blocks that it can read, itself or from others: at least Have
	Read  float64 // bytes a second of that
	Delay float64
}

// Choice is where a request goes: how soon its first token comes there, and why.
type Choice struct {
	Worker int     // index
	First  float64 // seconds to the first token
	Fetch  bool    // read the blocks it has not, rather than compute them
	Reason string
}

// Place chooses the worker with the soonest first token: what waits before it, plus the blocks that it has to read or
// to compute, whichever is sooner. Ties go to the first. ok is false without workers.
func Place(workers []Worker, blocks int, e Economy) (best Choice, ok bool) {
	for i, w := range workers {
		compute := func(from int) (s float64) {
			for d := from; d < blocks; d++ {
				s += e.Recompute(d)
			}
			return s
		}
		have, near := min(w.Have, blocks), min(max(w.Near, w.Have), blocks)
		c := Choice{Worker: i, First: w.Queue + compute(have)}
		c.Reason = fmt.Sprintf("%s has %d of %d blocks, begins in %.3g s, computes for %.3g s", w.Name, have, blocks, w.Queue, compute(have))
		if near > have && w.Read > 0 {
			fetch := w.Delay + float64(near-have)*e.Bytes/w.Read
			if s := w.Queue + fetch + compute(near); s < c.First {
				c.First, c.Fetch = s, true
				c.Reason = fmt.Sprintf("%s has %d of %d blocks, begins in %.3g s, reads %d in %.3g s, computes for %.3g s",
					w.Name, have, blocks, w.Queue, near-have, fetch, compute(near))
			}
		}
		if !ok || c.First < best.First {
			best, ok = c, true
		}
	}
	return best, ok
}
