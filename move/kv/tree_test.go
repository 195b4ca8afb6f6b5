package kv

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// number is a hash for tests.
func number(n uint64) (h Hash) {
	binary.BigEndian.PutUint64(h[:], n+1)
	return h
}

// plain is a tree without runs: one record a block, all of them looked at for each eviction.
type plain struct {
	o      Options
	blocks map[Hash]*record
	clock  uint64
	aging  float64
}

type record struct {
	hash, parent Hash
	depth        int
	locks, uses  int
	used         uint64
	heat, base   float64
}

func (p *plain) match(path []Hash) int {
	n := 0
	for n < len(path) && p.blocks[path[n]] != nil {
		n++
	}
	return n
}

func (p *plain) half() float64 {
	if p.o.HalfLife == 0 {
		return math.Inf(1)
	}
	return p.o.HalfLife
}

func (p *plain) touch(path []Hash, now float64, use bool) {
	p.clock++
	for _, h := range path {
		b := p.blocks[h]
		b.used, b.base = p.clock, p.aging
		if use {
			b.uses++
			b.heat = addLog(b.heat, now/p.half())
		}
	}
}

func (p *plain) rank(b *record) rank {
	r := rank{used: b.used}
	switch p.o.Policy {
	case LFU:
		r.score = b.heat
	case Cost:
		r.score = b.base + float64(b.uses)*p.o.Value(b.depth)
	}
	return r
}

func (p *plain) evict(keep map[Hash]bool) (Hash, bool) {
	parents := map[Hash]bool{}
	for _, b := range p.blocks {
		parents[b.parent] = true
	}
	var best *record
	for _, b := range p.blocks {
		if parents[b.hash] || b.locks > 0 || keep[b.hash] {
			continue
		}
		if best == nil || p.rank(b).less(p.rank(best)) {
			best = b
		}
	}
	if best == nil {
		return Hash{}, false
	}
	p.aging = p.rank(best).score
	delete(p.blocks, best.hash)
	return best.hash, true
}

func (p *plain) insert(path []Hash, now float64) (int, []Hash) {
	n := p.match(path)
	if n > 0 {
		p.touch(path[:n], now, false)
	}
	if n == len(path) {
		return n, nil
	}
	p.clock++
	keep := map[Hash]bool{}
	for _, h := range path {
		keep[h] = true
	}
	var gone []Hash
	var fresh []*record
	for ; n < len(path); n++ {
		if len(p.blocks) >= p.o.Blocks {
			h, ok := p.evict(keep)
			if !ok {
				break
			}
			gone = append(gone, h)
		}
		var parent Hash
		if n > 0 {
			parent = path[n-1]
		}
		b := &record{hash: path[n], parent: parent, depth: n, used: p.clock, uses: 1, heat: now / p.half()}
		fresh = append(fresh, b)
		p.blocks[path[n]] = b
	}
	for _, b := range fresh {
		b.base = p.aging
	}
	return n, gone
}

// paths draws a path in a small tree of hashes: a hash is the number of its path.
func drawPath(t *rapid.T) []Hash {
	var path []Hash
	at := uint64(1)
	for range rapid.IntRange(1, 12).Draw(t, "length") {
		turn := rapid.SampledFrom([]uint64{0, 0, 0, 1, 2}).Draw(t, "turn")
		at = at*3 + turn
		path = append(path, number(at))
	}
	return path
}

// A tree does what the plain one does: the longest prefix, the same victims in the same order, never
// a locked one, sizes that add up.
func TestTreeIsThePlainTree(t *testing.T) {
	for _, policy := range []Policy{LRU, LFU, Cost} {
		t.Run(string(policy), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				o := Options{Blocks: rapid.IntRange(1, 40).Draw(t, "blocks"), Policy: policy,
					HalfLife: float64(rapid.IntRange(0, 20).Draw(t, "half-life"))}
				if policy == Cost {
					o.Value = func(depth int) float64 { return 1 + 0.25*float64(depth) }
				}
				tree, p := NewTree(o), &plain{o: o, blocks: map[Hash]*record{}}
				type held struct {
					lock Lock
					path []Hash
				}
				var locks []held
				for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
					now := float64(step)
					path := drawPath(t)
					switch rapid.SampledFrom([]string{"match", "insert", "insert", "lock", "unlock", "cut"}).Draw(t, "what") {
					case "match":
						n := tree.Match(path, now)
						if want := p.match(path); n != want {
							t.Fatalf("match %d, want %d", n, want)
						}
						if n > 0 {
							p.touch(path[:n], now, true)
						}
					case "insert":
						n, gone, err := tree.Insert(path, now, nil)
						if err != nil {
							t.Fatal(err)
						}
						want, wantGone := p.insert(path, now)
						if n != want || !slices.Equal(gone, wantGone) {
							t.Fatalf("insert: %d there, gone %x; want %d, %x", n, gone, want, wantGone)
						}
					case "lock":
						l, n := tree.Lock(path)
						if want := p.match(path); n != want {
							t.Fatalf("locked %d, want %d", n, want)
						}
						for _, h := range path[:n] {
							p.blocks[h].locks++
						}
						locks = append(locks, held{l, path[:n]})
					case "unlock":
						if len(locks) > 0 {
							k := rapid.IntRange(0, len(locks)-1).Draw(t, "which")
							tree.Unlock(locks[k].lock)
							for _, h := range locks[k].path {
								if b := p.blocks[h]; b != nil && b.locks > 0 {
									b.locks--
								}
							}
							locks = slices.Delete(locks, k, k+1)
						}
					case "cut":
						if len(locks) > 0 {
							continue // what a lock of a removed block does is another test
						}
						at := rapid.IntRange(0, len(path)-1).Draw(t, "at")
						gone := tree.Cut(path, at, nil)
						want := 0
						if p.match(path) > at {
							bad := map[Hash]bool{path[at]: true}
							for again := true; again; {
								again = false
								for h, b := range p.blocks {
									if bad[b.parent] && !bad[h] {
										bad[h], again = true, true
									}
								}
							}
							for h := range bad {
								delete(p.blocks, h)
							}
							want = len(bad)
						}
						if len(gone) != want {
							t.Fatalf("cut %d, want %d", len(gone), want)
						}
					}
					check(t, tree, p)
				}
			})
		})
	}
}

func check(t *rapid.T, tree *Tree, p *plain) {
	if tree.Len() != len(p.blocks) || tree.Len() > tree.Room() {
		t.Fatalf("%d blocks, want %d of at most %d", tree.Len(), len(p.blocks), tree.Room())
	}
	locked, total := 0, 0
	for _, b := range p.blocks {
		if b.locks > 0 {
			locked++
		}
	}
	for _, h := range tree.heads.table {
		n := h.n
		if n == nil {
			continue
		}
		total += len(n.run)
		evictable := n.child == nil && n.locks == 0
		if evictable != (n.at >= 0) {
			t.Fatalf("a node of %d blocks: leaf %t, locks %d, heap %d", len(n.run), n.child == nil, n.locks, n.at)
		}
		for k, h := range n.run {
			if b := p.blocks[h]; b == nil || b.depth != n.depth+k || b.locks != int(n.locks) || b.uses != n.uses {
				t.Fatalf("block %x: %+v, want %+v", h[:8], n, b)
			}
		}
	}
	if tree.Locked() != locked || total != tree.Len() {
		t.Fatalf("locked %d, want %d; runs hold %d of %d", tree.Locked(), locked, total, tree.Len())
	}
}

// textbook is ARC as its paper has it, on slices; the first is the least recently used.
type textbook struct {
	c, p           int
	t1, t2, b1, b2 []Hash
}

func (a *textbook) replace(inB2 bool) {
	if len(a.t1) >= 1 && (inB2 && len(a.t1) == a.p || len(a.t1) > a.p) {
		a.b1, a.t1 = append(a.b1, a.t1[0]), a.t1[1:]
	} else {
		a.b2, a.t2 = append(a.b2, a.t2[0]), a.t2[1:]
	}
}

func (a *textbook) request(x Hash) (hit bool) {
	take := func(l *[]Hash) bool {
		k := slices.Index(*l, x)
		if k >= 0 {
			*l = slices.Delete(slices.Clone(*l), k, k+1)
		}
		return k >= 0
	}
	switch {
	case take(&a.t1) || take(&a.t2):
		a.t2 = append(a.t2, x)
		return true
	case slices.Contains(a.b1, x):
		a.p = min(a.c, a.p+max(len(a.b2)/len(a.b1), 1))
		a.replace(false)
		take(&a.b1)
		a.t2 = append(a.t2, x)
	case slices.Contains(a.b2, x):
		a.p = max(0, a.p-max(len(a.b1)/len(a.b2), 1))
		a.replace(true)
		take(&a.b2)
		a.t2 = append(a.t2, x)
	default:
		total := len(a.t1) + len(a.t2) + len(a.b1) + len(a.b2)
		if len(a.t1)+len(a.b1) == a.c {
			if len(a.t1) < a.c {
				a.b1 = a.b1[1:]
				a.replace(false)
			} else {
				a.t1 = a.t1[1:]
			}
		} else if total >= a.c {
			if total == 2*a.c {
				a.b2 = a.b2[1:]
			}
			a.replace(false)
		}
		a.t1 = append(a.t1, x)
	}
	return false
}

// On paths of one block ARC is the paper's.
func TestARCIsThePapers(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := 1 + r.IntN(30)
		a, tree := &textbook{c: c}, NewTree(Options{Blocks: c, Policy: ARC})
		for i := range 4000 {
			n := uint64(r.IntN(3 * c))
			if r.IntN(3) == 0 {
				n = uint64(i % (2 * c)) // a scan
			}
			path := []Hash{number(n)}
			hit := tree.Match(path, 0) == 1
			if !hit {
				if _, _, err := tree.Insert(path, 0, nil); err != nil {
					t.Fatal(err)
				}
			}
			if want := a.request(path[0]); hit != want || tree.sizes[0] != len(a.t1) || tree.sizes[1] != len(a.t2) ||
				tree.past.count[0] != len(a.b1) || tree.past.count[1] != len(a.b2) || tree.share != a.p {
				t.Fatalf("seed %d, request %d: hit %t, lists %v, ghosts %d %d, share %d; want %t, %d %d %d %d, %d",
					seed, i, hit, tree.sizes, tree.past.count[0], tree.past.count[1], tree.share, want, len(a.t1), len(a.t2), len(a.b1), len(a.b2), a.p)
			}
		}
	}
}

// With paths of many blocks ARC stays within its bounds, evicts no locked block and finds what is there.
func TestARCOfPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.IntRange(1, 30).Draw(t, "blocks")
		tree, there := NewTree(Options{Blocks: c, Policy: ARC}), map[Hash]bool{}
		for step := range 60 {
			path := drawPath(t)
			l, n := tree.Lock(path)
			m, gone, err := tree.Insert(path, float64(step), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range gone {
				if !there[h] || slices.Contains(path[:n], h) {
					t.Fatalf("evicted %x", h[:8])
				}
				delete(there, h)
			}
			for _, h := range path[:m] {
				there[h] = true
			}
			if m < len(path) && tree.Len() < c {
				t.Fatalf("%d of %d inserted, %d of %d used", m, len(path), tree.Len(), c)
			}
			tree.Unlock(l)
			tree.Match(drawPath(t), float64(step))
			if tree.Len() != len(there) || tree.Len() > c || tree.Len()+tree.past.count[0]+tree.past.count[1] > 2*c ||
				tree.sizes[0]+tree.sizes[1] != tree.Len() {
				t.Fatalf("%d blocks of %d, want %d; lists %v, ghosts %d %d",
					tree.Len(), c, len(there), tree.sizes, tree.past.count[0], tree.past.count[1])
			}
		}
	})
}

// A lock outlives its blocks.
func TestCutUnderALock(t *testing.T) {
	tree := NewTree(Options{Blocks: 8})
	path := []Hash{number(1), number(2), number(3), number(4)}
	tree.Insert(path, 0, nil)
	whole, _ := tree.Lock(path)
	half, _ := tree.Lock(path[:2])
	if gone := tree.Cut(path, 1, nil); len(gone) != 3 || tree.Len() != 1 || tree.Locked() != 1 {
		t.Fatalf("gone %d, left %d, locked %d", len(gone), tree.Len(), tree.Locked())
	}
	tree.Unlock(half)
	if tree.Locked() != 1 {
		t.Fatal("one lock is still there")
	}
	tree.Unlock(whole)
	if tree.Locked() != 0 {
		t.Fatal("no lock is left")
	}
	if n, _, err := tree.Insert(path, 1, nil); n != 4 || err != nil || tree.Match(path, 2) != 4 {
		t.Fatal(n, err)
	}
}

// A hash behind two different parents is no chain.
func TestInsertRefusesWhatIsNoChain(t *testing.T) {
	tree := NewTree(Options{Blocks: 8})
	tree.Insert([]Hash{number(1), number(2)}, 0, nil)
	n, _, err := tree.Insert([]Hash{number(2), number(3)}, 1, nil)
	if err == nil {
		n, _, err = tree.Insert([]Hash{number(9), number(1)}, 1, nil)
	}
	if err == nil {
		t.Fatal("inserted", n)
	}
}

func TestNextFollowsTheMostUsed(t *testing.T) {
	tree := NewTree(Options{Blocks: 99})
	a := []Hash{number(1), number(2), number(3), number(4)}
	b := []Hash{number(1), number(2), number(5)}
	tree.Insert(a, 0, nil)
	tree.Insert(b, 1, nil)
	tree.Match(a, 2)
	if got := tree.Next(a[:1], 9); !slices.Equal(got, a[1:]) {
		t.Fatalf("%x", got)
	}
	tree.Match(b, 3)
	tree.Match(b, 4)
	if got := tree.Next(a[:2], 1); !slices.Equal(got, b[2:]) {
		t.Fatalf("%x", got)
	}
	if tree.Next([]Hash{number(7)}, 3) != nil || tree.Uses(b) != 3 {
		t.Fatal(tree.Uses(b))
	}
}

// BenchmarkTree counts calls on a full tree of 131,072 blocks: in turn Match, Lock, Unlock and Insert of
// paths of eight blocks, of which half are shared by sixteen paths. Inserted blocks push out others.
func BenchmarkTree(b *testing.B) {
	for _, policy := range Policies {
		b.Run(string(policy), func(b *testing.B) {
			c := NewChurn(policy, 1<<17, 1)
			// Processor time, too: on a busy machine the clock counts others' work.
			used := func() float64 {
				var u syscall.Rusage
				if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
					b.Fatal(err)
				}
				return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
			}
			before := used()
			b.ResetTimer()
			for range b.N {
				c.Step()
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "operations/s")
			if cpu := used() - before; cpu > 0 {
				b.ReportMetric(float64(b.N)/cpu, "operations/processor-s")
			}
		})
	}
}

func ExampleTree() {
	chain, _ := NewChain(VLLM, "0", 4)
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	path, _ := chain.Hashes(tokens, Extra{Salt: "tenant a"})
	tree := NewTree(Options{Blocks: 1000})
	tree.Insert(path, 0, nil)
	other, _ := chain.Hashes(tokens, Extra{Salt: "tenant b"})
	fmt.Println(len(path), tree.Match(path, 1), tree.Match(other, 2))
	// Output: 2 2 0
}
