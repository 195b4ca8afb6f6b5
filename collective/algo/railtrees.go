package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

//	 root's domain      domain 1       domain 2, short
//	0 ─┬► 1  2  3      4  5  6  7      8  9
//	│  ├──┴──┘  │      ▲  ▲  ▲  ▲      ▲  ▲     the root scatters a slice to each of its mates; slice l
//	│  │  │  │  └──────┼──┼──┼──┘      │  │     passes from rank l to rank l of other domains, its own
//	└──┴──┴──┴─────────┴──┴──┴─────────┴──┘     rail, along two trees; inside, all slices are shared out
//
// A broadcast, and in reverse a reduce. The two trees over the domains are those of double-binary-tree: every domain but the root's
// receives half of its slices through each, and sends no more than it receives. So every NIC of a domain carries one slice each way.
//
// The root sends each slice once: those of its mates to them, and its own to one of them, from where it is passed along a chain. Its
// mates share out theirs among themselves.
//
// A short domain has fewer ranks than the others, each of which then receives several slices. It hangs on the one domain in each tree that
// has a child fewer than it could have.
//
// A copy has five channels: for each tree one between domains and one inside them, and one for the chain.
func init() {
	register(&Algorithm{
		Name: "rail-trees", Traits: Traits{Layers: true, Cut: CutShare, Long: 1},
		Ops:       []sched.Collective{sched.Broadcast, sched.Reduce},
		Summary:   "large messages from or to one rank over rails: every NIC of a domain carries a share of the data",
		Steps:     "ceil(log2 D) + 2 between D domains for a piece, or Local if that is more",
		Sent:      "at most S inside a domain, S/Local between domains",
		Reference: "Sanders, Speck, Träff 2009; HiCCL, Hidayetoglu et al. 2024",
		Build:     railTrees,
	})
}

// rails are domains with the same number of ranks, and at the end perhaps one with fewer.
type rails struct {
	Spec
	local, domains, short int // ranks of a full domain, full domains, ranks of the short one
	pieces, width         int // of a slice in each tree, and in all trees
	home                  house
	top                   int // the full domain on top of the trees
}

// house is a kind of domain: its first rank, how many ranks there are, the number of this rank among them, and that of the root, -1 if the
// root is elsewhere. Its rank s has the slices s, s+ranks, ... Where these do not come out even, all but the first turn on with each piece,
// so that no rank has more of them than the others in all pieces.
type house struct {
	first string
	ranks int
	seat  string
	root  int
	turn  string
}

func newRails(s Spec) *rails {
	v := &rails{Spec: s, local: s.domain(), pieces: s.cut(4)}
	v.domains, v.short = s.Ranks/v.local, s.Ranks%v.local
	v.width = 2 * s.Channels * v.pieces
	v.top = s.Root / v.local
	v.home = v.fullHouse()
	if v.fromShort() {
		v.home, v.top = v.shortHouse(), 0
	}
	v.home.root = s.Root % v.local
	return v
}

// fromShort reports whether the root is in the short domain.
func (v *rails) fromShort() bool { return v.Root >= v.full() }

// full is the number of ranks in full domains.
func (v *rails) full() int { return v.domains * v.local }

func (v *rails) fullHouse() house {
	return house{fmt.Sprintf("r/%d*%d", v.local, v.local), v.local, fmt.Sprintf("(r%%%d)", v.local), -1, ""}
}

func (v *rails) shortHouse() house {
	return house{itoa(v.full()), v.short, fmt.Sprintf("(r-%d)", v.full()), -1, ""}
}

// rows is how many slices some rank of a domain has.
func (v *rails) rows(h house) int { return (v.local + h.ranks - 1) / h.ranks }

// slices does something for each slice of a seat.
func (v *rails) slices(t *text, h house, seat string, body func(slice string)) {
	if v.rows(h) == 1 {
		body(seat)
		return
	}
	t.block(func() {
		slice := h.slice(v, seat)
		v.ifThere(t, h, slice, func() { body(slice) })
	}, "repeat i < %d:", v.rows(h))
}

// slice is the i-th one of a seat. If there are not as many for all seats, the last may not be there.
func (h house) slice(v *rails, seat string) string {
	if v.rows(h) == 1 {
		return seat
	}
	if h.turn != "" {
		seat = fmt.Sprintf("(%s-(0<i)*%s)%%%d", seat, h.turn, h.ranks)
	}
	return fmt.Sprintf("(i*%d+%s)", h.ranks, seat)
}

func (v *rails) ifThere(t *text, h house, slice string, body func()) {
	t.ifThere(v.local%h.ranks > 0, fmt.Sprintf("%s < %d", slice, v.local), body)
}

// peers is how many others share out slices with a rank of the domain. The root does not.
func (h house) peers() int {
	if h.root >= 0 {
		return max(h.ranks-2, 0)
	}
	return h.ranks - 1
}

// peer is another seat of the domain, by its distance from this one. The root has none.
func (h house) peer(by string) string {
	if h.root < 0 {
		return fmt.Sprintf("((%s%s)%%%d)", h.seat, by, h.ranks)
	}
	return fmt.Sprintf("(((%s-1%s)%%%d+%d)%%%d)", h.behind(), by, h.ranks-1, h.root+1, h.ranks)
}

// behind is how many seats after the root a rank is.
func (h house) behind() string { return fmt.Sprintf("(%s-%d)%%%d", h.seat, h.root, h.ranks) }

func railTrees(s Spec) (string, error) {
	v := newRails(s)
	var t text
	t.line("root %d", s.Root)
	t.line("chunks %d", v.local*v.width)
	if s.Op == sched.Reduce {
		rows := 1
		if v.short > 1 {
			rows = v.rows(v.shortHouse())
		}
		t.line("scratch %d", rows*v.width)
	}
	t.line("slots %d", orDefault(s.Slots, 2))
	for copy := range s.Channels {
		for tree := range 2 {
			x := v.part(copy*2 + tree)
			t.block(func() { x.between(&t) }, "channels 1:")
			t.block(func() { x.inside(&t) }, "channels 1:")
		}
		t.block(func() { v.chain(&t, copy) }, "channels 1:")
	}
	return t.String(), nil
}

// part is what passes through one tree.
type part struct {
	*rails
	number int
	pos    string // of this domain in the tree
	nodes  []node
	hook   int // the domain that the short one hangs on
}

func (v *rails) part(number int) *part {
	x := &part{rails: v, number: number}
	tree := number % 2
	p := circle{fmt.Sprintf("(r/%d)", v.local), itoa(v.domains)}.places(Spec{Op: v.Op, Ranks: v.domains, Root: v.top}, tree)
	x.pos = p.to
	rank := func(domain string) string { return fmt.Sprintf("(%s)*%d+r%%%d", domain, v.local, v.local) }
	named := p.from
	p.from = func(pos string) string { return rank(named(pos)) }
	if p.top != "" {
		p.top = rank(p.top)
	}
	x.nodes = binary(v.domains, p)
	last, even := v.domains-1, v.domains%2 == 0 && v.domains > 2
	switch {
	case tree == 0 || even:
		x.hook = (last + v.top) % v.domains
	default:
		x.hook = (v.top + 1) % v.domains
	}
	if v.short > 0 && !v.fromShort() {
		if tree == 1 && even {
			last = 1
		}
		x.hang(p, last)
	}
	return x
}

// guest is the short domain. If the root is there, no slices turn.
func (x *part) guest() house {
	h := x.shortHouse()
	if rest := x.local % x.short; rest > 0 && !x.fromShort() {
		h.turn = fmt.Sprintf("(p*%d+%d)*%d", 2*x.Channels, x.number, rest)
	}
	return h
}

// owner is the rank of the short domain that has a slice.
func (x *part) owner(slice string) string {
	if turn := x.guest().turn; turn != "" {
		return fmt.Sprintf("%d+(%s+(%d<%s)*%s)%%%d", x.full(), slice, x.short-1, slice, turn, x.short)
	}
	return fmt.Sprintf("%d+%s%%%d", x.full(), slice, x.short)
}

// hang makes the short domain a child of a position.
func (x *part) hang(p position, pos int) {
	child := x.owner(x.fullHouse().seat)
	top := len(x.nodes) - 1
	if pos == 0 {
		x.nodes[top].kids = append(x.nodes[top].kids, child)
		return
	}
	for i := range x.nodes[:top] {
		x.nodes[i].cond += fmt.Sprintf(" && %s != %d", x.pos, pos)
	}
	kids, up := relatives(x.domains, pos&-pos, pos)
	nd := node{cond: fmt.Sprintf("%s == %d", x.pos, pos), up: p.from(offset(x.pos, up))}
	if p.top != "" && up == -pos {
		nd.up = p.top
	}
	for _, k := range kids {
		nd.kids = append(nd.kids, p.from(offset(x.pos, k)))
	}
	nd.kids = append(nd.kids, child)
	x.nodes = append([]node{nd}, x.nodes...)
}

// channel is that between domains; the next one is that inside them.
func (x *part) channel() int { return x.number/2*5 + x.number%2*2 }

// in names a slice's piece p in a buffer, and acc that of the i-th slice of a rank in scratch.
func (x *part) in(buf, slice string) string {
	return fmt.Sprintf("%s[%s*%d+%d+p]", buf, slice, x.width, x.number*x.pieces)
}

func (x *part) acc(h house) string {
	row := ""
	if x.rows(h) > 1 {
		row = fmt.Sprintf("i*%d+", x.width)
	}
	return fmt.Sprintf("tmp[%s%d+p]", row, x.number*x.pieces)
}

// summed is where the sum of a rank's domain is, but for the root's share.
func (x *part) summed(h house, slice string) string {
	if h.peers() == 0 {
		return x.in("in", slice)
	}
	return x.acc(h)
}

// apart writes what ranks of full domains do, and those of the short one.
func (v *rails) apart(t *text, full, short func()) {
	if v.short == 0 {
		full()
		return
	}
	t.block(full, "if r < %d:", v.full())
	t.block(short, "else:")
}

// between passes slices from domain to domain. Ranks of a short domain share them out on the same channel.
func (x *part) between(t *text) {
	x.apart(t, func() {
		for _, nd := range x.nodes {
			t.block(func() {
				switch {
				case nd.up != "":
					t.each(x.pieces, func() { x.pass(t, nd, x.fullHouse()) })
				case x.fromShort():
					nd.up = x.owner(x.fullHouse().seat)
					t.each(x.pieces, func() { x.pass(t, nd, x.fullHouse()) })
				default:
					nd.up = itoa(x.Root)
					t.block(func() { t.each(x.pieces, func() { x.atRoot(t, nd) }) }, "if r == %d:", x.Root)
					t.block(func() { t.each(x.pieces, func() { x.pass(t, nd, x.home) }) }, "else:")
				}
			}, "if %s:", nd.cond)
		}
	}, func() {
		if x.fromShort() {
			t.block(func() { t.each(x.pieces, func() { x.atShortRoot(t) }) }, "if r == %d:", x.Root)
			t.block(func() { t.each(x.pieces, func() { x.aside(t, x.home) }) }, "else:")
		} else {
			t.each(x.pieces, func() { x.aside(t, x.guest()) })
		}
	})
}

// pass is what a rank of a full domain does with its slice.
func (x *part) pass(t *text, nd node, h house) {
	if x.Op == sched.Broadcast {
		nd.descend(t, x.in("out", h.seat))
		return
	}
	if n := h.peers(); n > 0 {
		t.line("wait channel %d done (p+1)*%d", x.channel()+1, 2*n)
	}
	nd.climb(t, x.summed(h, h.seat), x.acc(h), "")
}

// atRoot is what the root does, with its own slice and those of its mates.
func (x *part) atRoot(t *text, nd node) {
	mate := fmt.Sprintf("(%d+j)%%%d", x.home.root+1, x.local)
	rank := fmt.Sprintf("%d+%s", x.top*x.local, mate)
	mates := func(format string, args ...any) {
		if x.local > 1 {
			t.block(func() { t.line(format, args...) }, "repeat j < %d:", x.local-1)
		}
	}
	own := itoa(x.home.root)
	if x.Op == sched.Broadcast {
		mates("send %s to %s", x.in("in", "("+mate+")"), rank)
		for _, k := range nd.kids {
			t.line("send %s to %s", x.in("in", own), k)
		}
		return
	}
	src := x.chained(t, own)
	for _, k := range nd.kids {
		t.line("recv-reduce %s -> %s from %s", src, x.in("out", own), k)
		src = x.in("out", own)
	}
	mates("recv-reduce %s -> %s from %s", x.in("in", "("+mate+")"), x.in("out", "("+mate+")"), rank)
}

// chained is where the root has what came along the chain for a slice of its own.
func (x *part) chained(t *text, slice string) string {
	if x.home.ranks == 1 {
		return x.in("in", slice)
	}
	rows := (x.local - x.home.root + x.home.ranks - 1) / x.home.ranks
	t.line("wait channel %d done (p*2+%d)*%d", x.number/2*5+4, x.number%2+1, rows)
	return x.in("out", slice)
}

// atShortRoot is what the root does in the short domain.
func (x *part) atShortRoot(t *text) {
	src, line := "", "send "+x.in("in", "l")+" to %s"
	if x.Op == sched.Reduce {
		src = x.chained(t, "l")
		line = "recv-reduce " + x.in("in", "l") + " -> " + x.in("out", "l") + " from %s"
	}
	t.block(func() {
		t.block(func() {
			rank := fmt.Sprintf("%d+l", x.top*x.local)
			if x.Op == sched.Reduce {
				t.line("recv-reduce %s -> %s from %s", src, x.in("out", "l"), rank)
			} else {
				t.line(line, rank)
			}
		}, "if l%%%d == %d:", x.short, x.home.root)
		t.block(func() { t.line(line, x.owner("l")) }, "else:")
	}, "repeat l < %d:", x.local)
}

// aside is what a rank of the short domain does that is not the root.
func (x *part) aside(t *text, h house) {
	far := func(slice string) string { return fmt.Sprintf("%d+%s", x.hook*x.local, slice) }
	if x.fromShort() {
		far = func(slice string) string { return fmt.Sprintf("%d+%s", x.top*x.local, slice) }
	}
	each := func(body func(slice string)) { x.slices(t, h, h.seat, body) }
	switch {
	case x.Op == sched.Reduce:
		x.shareOut(t, h)
		each(func(slice string) {
			if x.fromShort() {
				t.line("recv-reduce-send %s from %s to %d", x.summed(h, slice), far(slice), x.Root)
			} else {
				t.line("send %s to %s", x.summed(h, slice), far(slice))
			}
		})
	default:
		each(func(slice string) {
			if x.fromShort() {
				t.line("recv-copy-send -> %s from %d to %s", x.in("out", slice), x.Root, far(slice))
			} else {
				t.line("recv -> %s from %s", x.in("out", slice), far(slice))
			}
		})
		x.shareOut(t, h)
	}
}

// inside shares out slices in full domains. The root, which has all of them, copies them.
func (x *part) inside(t *text) {
	if x.Op == sched.Broadcast {
		at := func(buf string) string {
			return fmt.Sprintf("%s[l*%d+%d +: %d]", buf, x.width, x.number*x.pieces, x.pieces)
		}
		t.block(func() {
			t.block(func() { t.line("copy %s -> %s", at("in"), at("out")) }, "repeat l < %d:", x.local)
		}, "if r == %d:", x.Root)
	}
	alike := func(h house, ready, cond string) {
		if h.peers() == 0 {
			return
		}
		t.block(func() {
			t.each(x.pieces, func() {
				if x.Op == sched.Broadcast {
					t.line("wait channel %d done %s", x.channel(), ready)
				}
				x.shareOut(t, h)
			})
		}, "if %s:", cond)
	}
	others := fmt.Sprintf("r < %d", x.full())
	if !x.fromShort() {
		others += fmt.Sprintf(" && r/%d != %d", x.local, x.top)
		alike(x.home, "p+1", fmt.Sprintf("r/%d == %d && r != %d", x.local, x.top, x.Root))
	}
	alike(x.fullHouse(), fmt.Sprintf("p*(1+(%s))+1", x.parent()), others)
}

// parent is whether a domain has two children in the tree, and so sends a piece twice.
func (x *part) parent() string {
	even := fmt.Sprintf("%s%%2 == 0 && %s != 0", x.pos, x.pos)
	if x.domains%2 == 1 && (x.short == 0 || x.fromShort()) { // the last has one
		even += fmt.Sprintf(" && %s != %d", x.pos, x.domains-1)
	}
	return even
}

// shareOut sends a rank's slices to its peers and receives theirs, or in reverse sends what the peers sum and sums its own. The root serves
// seats in their order: sent on the same way round, the slices of all would meet at the seat that comes next.
func (x *part) shareOut(t *text, h house) {
	n := h.peers()
	if n == 0 {
		return
	}
	rank := func(seat string) string { return h.first + "+" + seat }
	here := func(slice string, body func()) { x.ifThere(t, h, slice, body) }
	each := func(n int, body func()) {
		if n > 0 {
			t.block(body, "repeat j < %d:", n)
		}
	}
	mine := h.slice(x.rails, h.seat)
	body := func() {
		theirs := h.slice(x.rails, h.peer("+j+1"))
		here(mine, func() { each(n, func() { t.line("send %s to %s", x.in("out", mine), rank(h.peer("-j-1"))) }) })
		each(n, func() {
			here(theirs, func() { t.line("recv -> %s from %s", x.in("out", theirs), rank(h.peer("+j+1"))) })
		})
	}
	if x.Op == sched.Reduce {
		on := h.peer("+j+1")
		theirs := h.slice(x.rails, on)
		body = func() {
			each(n, func() { here(theirs, func() { t.line("send %s to %s", x.in("in", theirs), rank(on)) }) })
			here(mine, func() {
				t.line("recv-reduce %s -> %s from %s", x.in("in", mine), x.acc(h), rank(h.peer("-1")))
				each(n-1, func() { t.line("recv-reduce %s -> %s from %s", x.acc(h), x.acc(h), rank(h.peer("-j-2"))) })
			})
		}
	}
	if x.rows(h) == 1 {
		body()
		return
	}
	t.block(body, "repeat i < %d:", x.rows(h))
}

// chain passes the root's own slices through its domain, or sums them on the way to it.
func (v *rails) chain(t *text, copy int) {
	h := v.home
	if h.ranks == 1 {
		return
	}
	rank := func(by string) string { return fmt.Sprintf("%s+(%s%s)%%%d", h.first, h.seat, by, h.ranks) }
	next, prev, at := rank("+1"), rank("-1"), h.behind()
	step := func(slice string) {
		in := func(buf string) string {
			return fmt.Sprintf("%s[%s*%d+%d+w*%d+p]", buf, slice, v.width, 2*copy*v.pieces, v.pieces)
		}
		first, between, last := fmt.Sprintf("send %s to %s", in("in"), next),
			fmt.Sprintf("recv-copy-send -> %s from %s to %s", in("out"), prev, next), fmt.Sprintf("recv -> %s from %s", in("out"), prev)
		if v.Op == sched.Reduce {
			first, between, last = fmt.Sprintf("recv-reduce %s -> %s from %s", in("in"), in("out"), next),
				fmt.Sprintf("recv-reduce-send %s from %s to %s", in("in"), next, prev), fmt.Sprintf("send %s to %s", in("in"), prev)
		}
		t.block(func() { t.line("%s", first) }, "if %s == 0:", at)
		t.block(func() { t.line("%s", last) }, "if %s == %d:", at, h.ranks-1)
		t.block(func() { t.line("%s", between) }, "if 0 < %s && %s < %d:", at, at, h.ranks-1)
	}
	body := func() {
		t.each(v.pieces, func() {
			t.block(func() { v.slices(t, h, itoa(h.root), step) }, "repeat w < 2:")
		})
	}
	cond := fmt.Sprintf("r/%d == %d", v.local, v.top)
	if v.fromShort() {
		cond = fmt.Sprintf("r >= %d", v.full())
	}
	t.block(body, "if %s:", cond)
}
