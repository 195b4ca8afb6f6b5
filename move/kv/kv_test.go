package kv

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Digests of both conventions, computed apart from this code: Python's hashlib over bytes of RFC 8949 written by hand.
func TestHashesOfEngines(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4, 500, 60000, 7, 1 << 20}
	for _, c := range []struct {
		convention Convention
		seed       string
		extra      Extra
		want       []string
	}{
		{VLLM, "0", Extra{}, []string{"c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb",
			"0d14c6eb5445f20209ea6194004a86aeda7d9f0bf3d582085bea972e049014dc"}},
		{VLLM, "0", Extra{LoRA: "sql", Salt: "tenant"},
			[]string{"d6e0f1450b10af51cc3cc86da9ef50b523c4bfa2e6040e3d94156a31c7afff03",
				"c0d5561a4cd5e369c2e022ad503ffecefcd2ddb19d03c2ca4ee4c2db17ea6ba4"}},
		{SGLang, "", Extra{}, []string{"cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
			"4be0a8f83d88c52091e3cc14536505f9070d5018d00a50648129e799ed58c00e"}},
	} {
		chain, err := NewChain(c.convention, c.seed, 4)
		if err != nil {
			t.Fatal(err)
		}
		got, err := chain.Hashes(tokens, c.extra)
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range got {
			if h.String() != c.want[i] {
				t.Errorf("%s, block %d: %s, want %s", c.convention, i, h, c.want[i])
			}
		}
	}
}

// Every part of a prompt, the seed and the salt change the hash of a block and of all behind it, and nothing before it.
func TestHashesAreChains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 20).Draw(t, "block")
		chain, _ := NewChain(VLLM, "42", size)
		tokens := rapid.SliceOfN(rapid.Uint32(), size, 6*size).Draw(t, "tokens")
		a, err := chain.Hashes(tokens, Extra{})
		if err != nil || len(a) != len(tokens)/size {
			t.Fatal(len(a), err)
		}
		at := rapid.IntRange(0, len(tokens)-1).Draw(t, "at")
		changed := slices.Clone(tokens)
		changed[at]++
		b, _ := chain.Hashes(changed, Extra{})
		for i := range a {
			if same := a[i] == b[i]; same != (i < at/size) {
				t.Fatalf("token %d changed: block %d equal: %t", at, i, same)
			}
		}
		other, _ := NewChain(VLLM, "43", size)
		c, _ := other.Hashes(tokens, Extra{})
		d, _ := chain.Hashes(tokens, Extra{Salt: "x"})
		e, _ := chain.Hashes(tokens, Extra{Media: func(first int) []Media { return []Media{{"cat.png", -first}} }})
		for i := range a {
			if a[i] == c[i] || a[i] == d[i] || a[i] == e[i] || c[i] == d[i] {
				t.Fatalf("block %d: equal hashes", i)
			}
		}
		if chain.Print() == other.Print() || strings.Contains(chain.Print(), "42/") {
			t.Fatal(chain.Print())
		}
	})
}

func TestWrongChains(t *testing.T) {
	for _, c := range []struct {
		convention Convention
		seed       string
		block      int
	}{{VLLM, "", 16}, {SGLang, "1", 16}, {"md5", "1", 16}, {VLLM, "1", 0}} {
		if _, err := NewChain(c.convention, c.seed, c.block); err == nil {
			t.Errorf("%v is taken", c)
		}
	}
	chain, _ := NewChain(SGLang, "", 2)
	if _, err := chain.Hashes([]uint32{1, 2}, Extra{Salt: "x"}); err == nil {
		t.Error("a salt is lost")
	}
	if _, err := ParseHash("12"); err == nil {
		t.Error("a short hash is taken")
	}
	h := number(7)
	if got, err := ParseHash(h.String()); err != nil || got != h {
		t.Error(got, err)
	}
	if hex.EncodeToString(cborHead(nil, 0, 1<<40)) != "1b0000010000000000" {
		t.Error("a long number")
	}
}

// A drawn layout of one model.
func drawLayout(t *rapid.T, model Layout, name string) Layout {
	l := model
	l.Block = rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, name+" block")
	l.Blocks = rapid.IntRange(24/l.Block+1, 30).Draw(t, name+" blocks")
	var ranks []int
	for r := 1; r <= 2*l.Heads; r++ {
		if l.Heads%r == 0 || r%l.Heads == 0 {
			ranks = append(ranks, r)
		}
	}
	l.Ranks = rapid.SampledFrom(ranks).Draw(t, name+" ranks")
	l.HeadsFirst = rapid.Bool().Draw(t, name+" hnd")
	l.Together = rapid.Bool().Draw(t, name+" together")
	l.PageFirst = rapid.Bool().Draw(t, name+" page first")
	return l
}

// Copies bring every vector to its place, once, and nothing else: compared with going through the axes one by one.
func TestMovesBringEveryVectorToItsPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := Layout{Layers: rapid.IntRange(1, 3).Draw(t, "layers"), Heads: rapid.SampledFrom([]int{1, 2, 4, 6}).Draw(t, "heads"),
			Dim: rapid.IntRange(1, 2).Draw(t, "dim"), Elem: 2, Planes: rapid.IntRange(1, 2).Draw(t, "planes")}
		src, dst := drawLayout(t, model, "source"), drawLayout(t, model, "destination")
		tokens := rapid.IntRange(0, 24).Draw(t, "tokens")
		part := Part{Layer: rapid.IntRange(0, model.Layers-1).Draw(t, "layer"), Token: rapid.IntRange(0, tokens).Draw(t, "token")}
		part.Tokens = tokens - part.Token
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		from, to := r.Perm(src.Blocks)[:(tokens+src.Block-1)/src.Block], r.Perm(dst.Blocks)[:(tokens+dst.Block-1)/dst.Block]
		moves, err := Moves(src, dst, from, to, part)
		if err != nil {
			t.Fatal(err)
		}
		memory := make([][]byte, src.Ranks)
		for i := range memory {
			memory[i] = make([]byte, src.Bytes())
		}
		// A vector's bytes tell what it is; copies of a head are equal.
		mark := func(layer, plane, token, head, k int) byte {
			return byte(1 + (layer*7919+plane*104729+token*31+head*1299709+k*15485863)%255)
		}
		for rank := range memory {
			for layer := range src.Layers {
				for plane := range src.Planes {
					for token := range tokens {
						for h := range src.heads() {
							at := src.At(layer, plane, from[token/src.Block], token%src.Block, h)
							for k := range src.row() {
								memory[rank][at+k] = mark(layer, plane, token, src.head(rank)+h, k)
							}
						}
					}
				}
			}
		}
		got, want := make([][]byte, dst.Ranks), make([][]byte, dst.Ranks)
		for rank := range got {
			got[rank], want[rank] = make([]byte, dst.Bytes()), make([]byte, dst.Bytes())
			for layer := part.Layer; layer < dst.Layers; layer++ {
				for plane := range dst.Planes {
					for token := part.Token; token < tokens; token++ {
						for h := range dst.heads() {
							at := dst.At(layer, plane, to[token/dst.Block], token%dst.Block, h)
							for k := range dst.row() {
								want[rank][at+k] = mark(layer, plane, token, dst.head(rank)+h, k)
							}
						}
					}
				}
			}
		}
		for _, m := range moves {
			for k := range m.Len {
				if got[m.To][m.Dst+k] != 0 {
					t.Fatalf("byte %d of rank %d is written twice", m.Dst+k, m.To)
				}
				got[m.To][m.Dst+k] = memory[m.From][m.Src+k]
			}
		}
		for rank := range got {
			if !bytes.Equal(got[rank], want[rank]) {
				t.Fatalf("rank %d differs", rank)
			}
		}
	})
}

// The figures of the field: Llama 3 70B, 16 tokens a block.
func TestMovesOfLlama70B(t *testing.T) {
	l := Layout{Layers: 80, Heads: 8, Dim: 128, Elem: 2, Planes: 2, Block: 16, Blocks: 4, Ranks: 1}
	if l.TokenBytes() != 327680 {
		t.Error(l.TokenBytes())
	}
	// Layer first on both sides: 160 pieces of 32 KiB a block.
	m, err := Moves(l, l, []int{1}, []int{2}, Part{Tokens: 16})
	if err != nil || len(m) != 160 || m[0].Len != 32<<10 {
		t.Error(len(m), err)
	}
	// On eight ranks: 160 pieces of 4 KiB a rank.
	eight := l
	eight.Ranks = 8
	if m, err = Moves(eight, eight, []int{1}, []int{2}, Part{Tokens: 16}); err != nil || len(m) != 8*160 || m[0].Len != 4<<10 {
		t.Error(len(m), err)
	}
	// To a page-first pool: still a piece a layer and plane, and one piece back to another such pool.
	page := l
	page.PageFirst, page.Together = true, true
	if m, err = Moves(page, page, []int{1}, []int{2}, Part{Tokens: 16}); err != nil || len(m) != 1 || m[0].Len != 5<<20 {
		t.Error(len(m), err)
	}
}

func TestMovesRefuse(t *testing.T) {
	l := Layout{Layers: 2, Heads: 4, Dim: 8, Elem: 2, Planes: 2, Block: 4, Blocks: 4, Ranks: 2}
	for name, f := range map[string]func(a, b *Layout, from, to *[]int, p *Part){
		"model":       func(a, b *Layout, _, _ *[]int, _ *Part) { b.Layers = 3 },
		"type":        func(a, b *Layout, _, _ *[]int, _ *Part) { b.Elem = 1 },
		"ranks":       func(a, b *Layout, _, _ *[]int, _ *Part) { b.Ranks = 3 },
		"zero":        func(a, b *Layout, _, _ *[]int, _ *Part) { a.Block = 0 },
		"planes":      func(a, b *Layout, _, _ *[]int, _ *Part) { a.Planes, b.Planes = 3, 3 },
		"huge":        func(a, b *Layout, _, _ *[]int, _ *Part) { a.Blocks = 1 << 31; a.Dim = 1 << 20; b.Dim = 1 << 20 },
		"block":       func(_, _ *Layout, from, _ *[]int, _ *Part) { *from = []int{0, 4} },
		"negative":    func(_, _ *Layout, from, _ *[]int, _ *Part) { *from = []int{0, -1} },
		"twice":       func(_, _ *Layout, _, to *[]int, _ *Part) { *to = []int{1, 1} },
		"too few":     func(_, _ *Layout, _, to *[]int, _ *Part) { *to = []int{1} },
		"layers":      func(_, _ *Layout, _, _ *[]int, p *Part) { p.Layers = 3 },
		"tokens":      func(_, _ *Layout, _, _ *[]int, p *Part) { p.Tokens = -1 },
		"first layer": func(_, _ *Layout, _, _ *[]int, p *Part) { p.Layer = -1 },
	} {
		a, b, from, to, p := l, l, []int{0, 1}, []int{2, 3}, Part{Tokens: 8}
		f(&a, &b, &from, &to, &p)
		if _, err := Moves(a, b, from, to, p); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// Tiers hold whole prefixes, each within its size; a lookup finds every block that any of them has.
func TestTiers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []Tier
		for i := range rapid.IntRange(1, 3).Draw(t, "tiers") {
			list = append(list, Tier{Name: string(rune('a' + i)), Blocks: rapid.IntRange(1, 10*(i+1)).Draw(t, "blocks"),
				Policy: rapid.SampledFrom(Policies).Draw(t, "policy"),
				Admit:  rapid.SampledFrom([]Admission{Always, Second, Worth}).Draw(t, "admit"), Read: 1e9})
		}
		tiers, err := NewTiers(list, Llama70B(512), 10)
		if err != nil {
			t.Fatal(err)
		}
		have := make([]map[Hash]bool, len(list))
		for i := range have {
			have[i] = map[Hash]bool{}
		}
		for step := range 40 {
			path := drawPath(t)
			end := 0
			for i, s := range tiers.Lookup(path, float64(step)) {
				if s.From != end || s.To <= s.From || i > s.Tier {
					t.Fatalf("spans %v", s)
				}
				end = s.To
				for _, h := range path[s.From:s.To] {
					if !have[s.Tier][h] {
						t.Fatal("a block that is not there is found")
					}
				}
			}
			if end < len(path) {
				for i := range have {
					if have[i][path[end]] {
						t.Fatal("a block that is there is not found")
					}
				}
			}
			c, err := tiers.Store(path, float64(step))
			if err != nil {
				t.Fatal(err)
			}
			for i, gone := range c.Gone {
				for _, h := range gone {
					delete(have[i], h)
				}
			}
			for _, p := range c.Put {
				for _, h := range path[p.From:p.To] {
					have[p.Tier][h] = true
				}
			}
			for i := range have {
				if n := tiers.Tree(i).Len(); n != len(have[i]) || n > list[i].Blocks {
					t.Fatalf("tier %d: %d blocks, want %d of %d", i, n, len(have[i]), list[i].Blocks)
				}
			}
		}
	})
}

func TestAbsent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, until := NewAbsent(8, 5), map[Hash]float64{}
		for step := range 80 {
			now := float64(step)
			h := number(uint64(rapid.IntRange(0, 20).Draw(t, "block")))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				a.Add(h, now)
				until[h] = now + 5
			case 2:
				a.Remove(h)
				delete(until, h)
			}
			if a.Has(h, now) && until[h] <= now || a.Len() > 8 || len(a.queue) > 40 {
				t.Fatalf("block is absent until %g at %g; %d remembered, queue %d", until[h], now, a.Len(), len(a.queue))
			}
		}
		h := number(99)
		a.Add(h, 100)
		if !a.Has(h, 104) || a.Has(h, 105) {
			t.Fatal("time")
		}
	})
}

func TestPlace(t *testing.T) {
	e := Llama70B(512)
	all := []Worker{{Name: "idle", Read: 1e9}, {Name: "has", Queue: 0.1, Have: 20}, {Name: "busy", Queue: 60, Have: 24}}
	if c, ok := Place(all, 24, e); !ok || all[c.Worker].Name != "has" || c.Fetch {
		t.Errorf("%+v", c)
	}
	// An idle worker that reads blocks fast is sooner than one that has them and is busy.
	all[1].Queue = 10
	all[0].Near, all[0].Read = 24, 50e9
	if c, _ := Place(all, 24, e); all[c.Worker].Name != "idle" || !c.Fetch || !strings.Contains(c.Reason, "reads 24") {
		t.Errorf("%+v", c)
	}
	if _, ok := Place(nil, 24, e); ok {
		t.Error("a place without workers")
	}
}

func TestTraces(t *testing.T) {
	s := Conversation()
	s.Requests = 600
	list, err := Generate(s, 3)
	if err != nil {
		t.Fatal(err)
	}
	var text, again bytes.Buffer
	if err := WriteTrace(&text, list); err != nil {
		t.Fatal(err)
	}
	read, err := ReadTrace(bytes.NewReader(text.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	WriteTrace(&again, read)
	if !bytes.Equal(text.Bytes(), again.Bytes()) || len(read) != 600 {
		t.Fatal("a trace does not come back")
	}
	mean := 0
	for _, r := range read {
		mean += r.Input / len(read)
		if len(r.IDs) != (r.Input+TraceBlock-1)/TraceBlock {
			t.Fatalf("%d tokens, %d blocks", r.Input, len(r.IDs))
		}
	}
	if mean < 4000 || mean > 16000 {
		t.Errorf("%d tokens a request", mean)
	}
	// More blocks never find less with LRU, no policy finds more than there is, and tiers stay within their sizes.
	last := 0.0
	for _, n := range []int{100, 1000, 100000} {
		for _, p := range Policies {
			r, err := Replay(read, []Tier{{Name: "memory", Blocks: n, Policy: p}}, Llama70B(TraceBlock), 600)
			if err != nil {
				t.Fatal(err)
			}
			if r.Rate > r.Bound+1e-9 || r.Most[0] > n || r.Puts[0]-r.Gone[0] > n || n == 100000 && r.Hits != int(r.Bound*float64(r.Blocks)+0.5) {
				t.Errorf("%s of %d: %+v", p, n, r)
			}
			if p == LRU {
				if r.Rate < last {
					t.Errorf("LRU of %d finds %g, of fewer %g", n, r.Rate, last)
				}
				last = r.Rate
			}
		}
	}
}

func TestParseTiers(t *testing.T) {
	got, err := ParseTiers("memory=10,disk=200:arc:second", LRU, Always)
	if err != nil || len(got) != 2 || got[0] != (Tier{Name: "memory", Blocks: 10, Policy: LRU, Admit: Always}) ||
		got[1] != (Tier{Name: "disk", Blocks: 200, Policy: ARC, Admit: Second}) {
		t.Error(got, err)
	}
	for _, bad := range []string{"", "a", "a=", "a=0", "a=-1", "a=1x", "a=1:fifo", "a=1,a=2", "=3", "a=1:lru:always:x",
		"a=99999999999999999999"} {
		if _, err := ParseTiers(bad, LRU, Always); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}`))
	f.Add([]byte(`{"timestamp": 1e400}`))
	f.Add([]byte("{}\n\n[]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := ReadTrace(bytes.NewReader(data))
		if err != nil || len(data) > 1<<12 {
			return
		}
		if _, err := Replay(list, []Tier{{Name: "m", Blocks: 3, Policy: ARC}}, Llama70B(512), 1); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzParseTiers: tiers that are read have a name, blocks and a known policy each, and no name twice.
func FuzzParseTiers(f *testing.F) {
	for _, s := range []string{"memory=1000,disk=20000:arc:second", "m=1", "m=0", "m=1,m=2", "m=1:lru:lru:lru", "=1", "m=99999999999999999999",
		"m=1:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseTiers(text, LRU, Always)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, l := range list {
			if _, err := ParsePolicy(string(l.Policy)); err != nil || l.Name == "" || l.Blocks < 1 || seen[l.Name] {
				t.Errorf("%q: %+v: %v", text, l, err)
			}
			seen[l.Name] = true
		}
	})
}

// FuzzParseHash: what is read is written as it was, in small letters.
func FuzzParseHash(f *testing.F) {
	f.Add(Hash{1, 2, 3}.String())
	f.Add(strings.Repeat("A", 64))
	f.Add("0x12")
	f.Fuzz(func(t *testing.T, text string) {
		if h, err := ParseHash(text); err == nil && h.String() != strings.ToLower(text) {
			t.Errorf("%q became %s", text, h)
		}
	})
}
