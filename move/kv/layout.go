package kv

import "fmt"

// Layout says where the pieces of a KV cache lie in the memory of the ranks that share it: rank r holds a range of
// heads. The smallest piece is one head's vector for one token, layer and plane (keys or values).
//
//	                     K and V apart                     K and V together
//	layer first   layer plane block token head        layer block plane token head
//	page first    plane block layer token head        block layer plane token head
//
// With HeadsFirst (HND) the last two are head and token. The field's names: vLLM's flash attention is layer first,
// apart, NHD; its flashinfer layer first, together; host pools of offloading are page first.
type Layout struct {
	Layers, Heads, Dim int // Heads: key and value heads of the whole model
	Elem               int // bytes of a number
	Planes             int // 2: keys and values; 1: one vector for both (MLA)
	Block              int // tokens of a block
	Blocks             int // of the pool
	Ranks              int // that share the heads (tensor parallel); with more ranks than heads each head is on several

	HeadsFirst bool // HND instead of NHD
	Together   bool // K and V of a block beside each other
	PageFirst  bool // a block's layers beside each other
}

// Check reports what is wrong with a layout.
func (l Layout) Check() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"layers", l.Layers}, {"heads", l.Heads}, {"dim", l.Dim}, {"elem", l.Elem}, {"block", l.Block}, {"blocks", l.Blocks},
		{"ranks", l.Ranks}} {
		if f.value < 1 || f.value > 1<<31 {
			return fmt.Errorf("kv: layout: %s is %d; want 1 to 2^31", f.name, f.value)
		}
	}
	if l.Planes != 1 && l.Planes != 2 {
		return fmt.Errorf("kv: layout: %d planes; want 2 (keys and values) or 1 (MLA)", l.Planes)
	}
	if l.Heads%l.Ranks != 0 && l.Ranks%l.Heads != 0 {
		return fmt.Errorf("kv: layout: %d heads on %d ranks: neither divides the other", l.Heads, l.Ranks)
	}
	whole := 1
	for _, f := range []int{l.Layers, l.Planes, l.Blocks, l.Block, l.heads(), l.Dim, l.Elem} {
		if whole > (1<<50)/f {
			return fmt.Errorf("kv: layout: a rank would hold more than 2^50 bytes")
		}
		whole *= f
	}
	return nil
}

// heads is the number of heads of a rank.
func (l Layout) heads() int { return max(1, l.Heads/l.Ranks) }

// head is the first head of a rank, copies on how many ranks each head is.
func (l Layout) head(rank int) int { return rank * l.Heads / l.Ranks }
func (l Layout) copies() int       { return max(1, l.Ranks/l.Heads) }

// row is the smallest piece in bytes.
func (l Layout) row() int { return l.Dim * l.Elem }

// TokenBytes is what a token takes on all ranks, each head once.
func (l Layout) TokenBytes() int { return l.Planes * l.Layers * l.Heads * l.row() }

// Bytes is the memory of one rank.
func (l Layout) Bytes() int { return l.Layers * l.Planes * l.Blocks * l.Block * l.heads() * l.row() }

// LayerBytes is what a layer takes of a block on one rank.
func (l Layout) LayerBytes() int { return l.Planes * l.Block * l.heads() * l.row() }

// steps are the distances in bytes between neighbours along each axis.
type steps struct{ layer, plane, block, token, head int }

// steps are the distances, in bytes, between neighbours in each dimension. The innermost comes first, and each is as
// long as all inside it.
func (l Layout) steps() steps {
	var s steps
	at := l.row()
	grow := func(step *int, n int) {
		*step = at
		at *= n
	}
	if l.HeadsFirst {
		grow(&s.token, l.Block)
		grow(&s.head, l.heads())
	} else {
		grow(&s.head, l.heads())
		grow(&s.token, l.Block)
	}
	switch {
	case l.PageFirst && l.Together:
		grow(&s.plane, l.Planes)
		grow(&s.layer, l.Layers)
		grow(&s.block, l.Blocks)
	case l.PageFirst:
		grow(&s.layer, l.Layers)
		grow(&s.block, l.Blocks)
		grow(&s.plane, l.Planes)
	case l.Together:
		grow(&s.plane, l.Planes)
		grow(&s.block, l.Blocks)
		grow(&s.layer, l.Layers)
	default:
		grow(&s.block, l.Blocks)
		grow(&s.plane, l.Planes)
		grow(&s.layer, l.Layers)
	}
	return s
}

// At is where the vector of a head lies in the memory of a rank that has it. head counts from the rank's first.
func (l Layout) At(layer, plane, block, token, head int) int {
	s := l.steps()
	return layer*s.layer + plane*s.plane + block*s.block + token*s.token + head*s.head
}

// Copy is bytes that follow one another on both sides.
type Copy struct {
	From, To int // ranks
	Src, Dst int // where, in the memory of each
	Len      int
}

// Part is what of a cache is moved.
type Part struct {
	Layer, Layers int // first, and how many; 0 layers: all
	Token, Tokens int // of the sequence
}

// Moves lists the copies that bring a part of a sequence from one layout to another, layer by layer. Tables give the
// blocks of the sequence on both sides, in the order of its tokens. The sides may differ in everything but the
// model: ranks, order, block size, number type excepted. Every byte of the destination is written once.
func Moves(src, dst Layout, from, to []int, p Part) ([]Copy, error) {
	for _, l := range []Layout{src, dst} {
		if err := l.Check(); err != nil {
			return nil, err
		}
	}
	if src.Layers != dst.Layers || src.Heads != dst.Heads || src.Dim != dst.Dim || src.Planes != dst.Planes {
		return nil, fmt.Errorf("kv: the sides are of different models: %d and %d layers, %d and %d heads of %d and %d, %d and %d planes",
			src.Layers, dst.Layers, src.Heads, dst.Heads, src.Dim, dst.Dim, src.Planes, dst.Planes)
	}
	if src.Elem != dst.Elem {
		return nil, fmt.Errorf("kv: numbers of %d bytes on one side, %d on the other: a copy does not convert", src.Elem, dst.Elem)
	}
	if p.Layers == 0 {
		p.Layers = src.Layers - p.Layer
	}
	if err := p.check(src, dst, from, to); err != nil {
		return nil, err
	}
	m := mover{src: src, dst: dst, from: src.steps(), to: dst.steps()}
	for layer := p.Layer; layer < p.Layer+p.Layers; layer++ {
		for r := range dst.Ranks {
			m.heads(r, func(rank, a, b, n int) {
				for plane := range src.Planes {
					for t := p.Token; t < p.Token+p.Tokens; {
						i, j := t%src.Block, t%dst.Block
						count := min(src.Block-i, dst.Block-j, p.Token+p.Tokens-t)
						m.rows(Copy{From: rank, To: r,
							Src: layer*m.from.layer + plane*m.from.plane + from[t/src.Block]*m.from.block + i*m.from.token + a*m.from.head,
							Dst: layer*m.to.layer + plane*m.to.plane + to[t/dst.Block]*m.to.block + j*m.to.token + b*m.to.head}, count, n)
						t += count
					}
				}
			})
		}
	}
	return m.out, nil
}

// check says whether both sides have the part. A block may be read twice, but not written twice.
func (p Part) check(src, dst Layout, from, to []int) error {
	if p.Layer < 0 || p.Layers < 0 || p.Layer+p.Layers > src.Layers {
		return fmt.Errorf("kv: layers %d to %d of %d", p.Layer, p.Layer+p.Layers, src.Layers)
	}
	if p.Token < 0 || p.Tokens < 0 {
		return fmt.Errorf("kv: %d tokens from token %d on", p.Tokens, p.Token)
	}
	for _, side := range []struct {
		name  string
		l     Layout
		table []int
	}{{"source", src, from}, {"destination", dst, to}} {
		if p.Token+p.Tokens > len(side.table)*side.l.Block {
			return fmt.Errorf("kv: tokens %d to %d do not fit the %s's %d blocks of %d",
				p.Token, p.Token+p.Tokens, side.name, len(side.table), side.l.Block)
		}
		used := map[int]bool{}
		for _, b := range side.table {
			if b < 0 || b >= side.l.Blocks {
				return fmt.Errorf("kv: block %d of the %s's %d", b, side.name, side.l.Blocks)
			}
			if used[b] && side.name == "destination" {
				return fmt.Errorf("kv: block %d of the destination is in the table twice", b)
			}
			used[b] = true
		}
	}
	return nil
}

type mover struct {
	src, dst Layout
	from, to steps
	out      []Copy
}

// heads gives the runs of heads that a rank of the destination takes, each from one rank of the source: their first
// places there and here, and their number. Of several copies of a head, destinations read different ones.
func (m *mover) heads(r int, f func(rank, a, b, n int)) {
	first, count := m.dst.head(r), m.dst.heads()
	for h := first; h < first+count; {
		rank := h * m.src.Ranks / m.src.Heads
		if c := m.src.copies(); c > 1 {
			rank = h*c + r%c
		}
		start := m.src.head(rank)
		n := min(start+m.src.heads(), first+count) - h
		f(rank, h-start, h-first, n)
		h += n
	}
}

// rows adds the copies of tokens and heads that follow one another in both blocks.
func (m *mover) rows(c Copy, tokens, heads int) {
	row := m.src.row()
	if m.from.token == heads*row && m.to.token == heads*row { // whole rows of all heads on both sides
		c.Len = tokens * heads * row
		m.add(c)
		return
	}
	if m.from.head == row && m.to.head == row {
		c.Len = heads * row
		for range tokens {
			m.add(c)
			c.Src += m.from.token
			c.Dst += m.to.token
		}
		return
	}
	for h := range heads {
		d := c
		d.Src += h * m.from.head
		d.Dst += h * m.to.head
		if m.from.token == row && m.to.token == row {
			d.Len = tokens * row
			m.add(d)
			continue
		}
		d.Len = row
		for range tokens {
			m.add(d)
			d.Src += m.from.token
			d.Dst += m.to.token
		}
	}
}

// add appends a copy, or lengthens the last one that it follows.
func (m *mover) add(c Copy) {
	if n := len(m.out); n > 0 {
		l := &m.out[n-1]
		if l.From == c.From && l.To == c.To && l.Src+l.Len == c.Src && l.Dst+l.Len == c.Dst {
			l.Len += c.Len
			return
		}
	}
	m.out = append(m.out, c)
}
