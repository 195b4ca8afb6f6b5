package algo

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

//	 domain 0      domain 1
//	0  1  2  3    4  5  6  7     inside: reduce-scatter, rank l of a domain ends
//	│  │  │  │    │  │  │  │     with slice l
//	│  │  │  └────┼──┼──┼──┘     between: all-reduce of slice l among the ranks l
//	│  │  └───────┼──┼──┘        of all domains, its own rail
//	│  └──────────┼──┘           inside: all-gather
//	└─────────────┘
//
// Where some domains have fewer ranks than the others, an all-reduce is that of
// the full domains, and the short ones hang on it (short.go).
//
// Copies follow one another: a copy begins inside when the one before goes on
// between domains, so that links of both sorts are busy.
//
// Any algorithm that does reduce-scatter and all-gather serves inside, any that
// does all-reduce between, as long as a copy of it runs on one channel; trees
// climb and descend on one channel here. Their programs are taken as they are,
// with ranks and chunks renamed. A reduce-scatter is the first inner part and an
// outer reduce-scatter, an all-gather an outer all-gather and the last inner
// part, both by way of scratch, where the blocks of a rail are neighbours.
func init() {
	register(&Algorithm{
		Name: "hierarchical", Traits: Traits{Layers: true, Outer: true, Vast: true, Copies: 4, Long: 3},
		Ops:       []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather},
		Summary:   "large messages over rails: only a share of the data leaves a domain on each",
		Steps:     "those of its parts; ring in ring 2(Local-1) + 2(domains-1), half for reduce-scatter, all-gather",
		Sent:      "ring in ring: 2S(Local-1)/Local inside, 2S(D-1)/(D Local) between D domains, half for reduce-scatter, all-gather",
		Reference: "BlueConnect, Cho et al. 2019",
		Fits: func(s Spec) error {
			if err := evenly(s); err != nil {
				return err
			}
			_, _, err := s.levels()
			return err
		},
		Build: hierarchical,
	})
}

// levels finds the algorithms for inside and between domains.
func (s *Spec) levels() (inner, outer *Algorithm, err error) {
	names := [2]string{s.Inner, s.Outer}
	for i := range names {
		if names[i] == "" {
			names[i] = "ring"
		}
	}
	fits := func(name string, ok func(*Algorithm) bool) (*Algorithm, error) {
		var known []string
		for _, a := range All() {
			if !ok(a) {
				continue
			}
			if a.Name == name {
				return a, nil
			}
			known = append(known, a.Name)
		}
		return nil, fmt.Errorf("no algorithm %q; known there: %s", name, strings.Join(known, ", "))
	}
	if inner, err = fits(names[0], func(a *Algorithm) bool { return IsInner(a, s.Op) }); err != nil {
		return nil, nil, fmt.Errorf("inside a domain: %w", err)
	}
	if outer, err = fits(names[1], func(a *Algorithm) bool { return IsOuter(a, s.Op) }); err != nil {
		return nil, nil, fmt.Errorf("between domains: %w", err)
	}
	return inner, outer, nil
}

// IsInner reports whether an algorithm may stand inside the domains of
// hierarchical for a collective, IsOuter whether it may stand between them.
func IsInner(a *Algorithm, op sched.Collective) bool {
	return a.Nests && (op == sched.AllGather || a.Serves(sched.ReduceScatter)) && (op == sched.ReduceScatter || a.Serves(sched.AllGather))
}

// IsOuter: see IsInner.
func IsOuter(a *Algorithm, op sched.Collective) bool { return a.Nests && a.Serves(op) }

func hierarchical(s Spec) (string, error) {
	inner, outer, err := s.levels()
	if err != nil {
		return "", err
	}
	local := s.domain()
	domains, list, err := s.shorts()
	if err != nil {
		return "", err
	}
	h := &nest{s: s, local: local, domains: domains, short: list}
	part := func(a *Algorithm, op sched.Collective, n int) *sched.Program {
		p, e := a.Program(Spec{Op: op, Ranks: n, flat: true, Slots: s.Slots})
		if e != nil {
			err = e
		}
		return p
	}
	between := part(outer, s.Op, h.domains)
	var first, last *sched.Program
	if s.Op != sched.AllGather {
		first = part(inner, sched.ReduceScatter, local)
	}
	if s.Op != sched.ReduceScatter {
		last = part(inner, sched.AllGather, local)
	}
	if err != nil {
		return "", err
	}
	return h.write(first, between, last)
}

// nest puts a program between domains into one inside them.
type nest struct {
	s              Spec
	local, domains int
	short          []short
}

func (h *nest) write(first, between, last *sched.Program) (string, error) {
	local, s := h.local, h.s
	num := func(v int) *sched.Expr { return sched.N(v) }
	m := max(between.NumChunks(sched.In), between.NumChunks(sched.Out)) // chunks of a slice; one block inside is a slice
	slots, wide := 1, 0
	if s.Op != sched.AllReduce {
		wide = local * m // all slices in scratch
	}
	scratch := m + wide // the slice, all slices, then what the parts need
	for _, p := range []*sched.Program{first, between, last} {
		if p == nil {
			continue
		}
		slots = max(slots, p.Slots)
		size := p.NumChunks(sched.Tmp)
		if p != between {
			size *= m
		}
		scratch = max(scratch, m+wide+size)
	}
	r, c := name("r"), name("c")
	l, g := op(sched.Mod, r, num(local)), op(sched.Div, r, num(local))
	tmp := op(sched.Mul, c, num(scratch)) // of the copy
	all, more := op(sched.Add, tmp, num(m)), op(sched.Add, tmp, num(m+wide))
	scaled := func(e *sched.Expr) *sched.Expr { return op(sched.Mul, e, num(m)) }
	same := func(e *sched.Expr) *sched.Expr { return e }
	mate := func(e *sched.Expr) *sched.Expr { return op(sched.Add, op(sched.Mul, g, num(local)), e) }
	twin := func(e *sched.Expr) *sched.Expr { return op(sched.Add, op(sched.Mul, e, num(local)), l) }
	inside := func(p *sched.Program, in, out place) renamer {
		return renamer{p: p, rank: l, peer: mate, scale: scaled,
			place: map[sched.Buffer]place{sched.In: in, sched.Out: out, sched.Tmp: {sched.Tmp, more}}}
	}
	across := func(in, out place) renamer {
		return renamer{p: between, rank: g, peer: twin, scale: same,
			place: map[sched.Buffer]place{sched.In: in, sched.Out: out, sched.Tmp: {sched.Tmp, more}}}
	}
	// Block b of a rank's larger buffer is chunk b/local of slice b%local.
	b := name("b")
	block := sched.Ref{Buf: sched.In, Index: op(sched.Add, op(sched.Mul, b, num(s.Channels)), c)}
	sliced := sched.Ref{Buf: sched.Tmp, Index: op(sched.Add, all,
		op(sched.Add, op(sched.Mul, op(sched.Mod, b, num(local)), num(m)), op(sched.Div, b, num(local))))}
	blocks := func(src, dst sched.Ref) []sched.Stmt {
		return []sched.Stmt{{Loop: &sched.Loop{Var: "b", Count: name("n"),
			Body: []sched.Stmt{{Step: &sched.Step{Op: sched.Copy, Src: src, Dst: dst}}}}}}
	}
	chunks := s.Channels * local * m
	var body []sched.Stmt
	var err error
	add := func(f renamer) { body = append(body, f.body(f.p.Groups[0].Body)...) }
	switch s.Op {
	case sched.AllReduce:
		if k, alike := actions(first); s.Channels > 1 && alike {
			body = append(body, sched.Stmt{If: &sched.If{Cond: op(sched.Lt, num(0), c), Then: []sched.Stmt{{Step: &sched.Step{
				Op: sched.Wait, Channel: op(sched.Sub, c, num(1)), Done: op(sched.Add, op(sched.Lt, num(1), c), num(k))}}}}})
		}
		base := op(sched.Mul, c, num(local*m))                 // of the copy
		slice := op(sched.Add, base, op(sched.Mul, l, num(m))) // of the rank
		add(inside(first, place{sched.In, base}, place{sched.Tmp, tmp}))
		sums := body
		body = nil
		add(across(place{sched.Tmp, tmp}, place{sched.Out, slice}))
		between := body
		body = nil
		add(inside(last, place{sched.Out, slice}, place{sched.Out, base}))
		a := attached{local: local, full: h.domains, copies: s.Channels, m: m, list: h.short}
		body, err = a.beside(s, fmt.Sprintf("tmp[c*%d +: %d]", scratch, m), sums, between, body)
	case sched.ReduceScatter:
		body = blocks(block, sliced)
		add(inside(first, place{sched.Tmp, all}, place{sched.Tmp, tmp}))
		add(across(place{sched.Tmp, tmp}, place{sched.Out, c}))
	case sched.AllGather:
		add(across(place{sched.In, c}, place{sched.Tmp, tmp}))
		add(inside(last, place{sched.Tmp, tmp}, place{sched.Tmp, all}))
		block.Buf = sched.Out
		body = append(body, blocks(sliced, block)...)
	}
	p := &sched.Program{Chunks: num(chunks), Scratch: num(s.Channels * scratch), Slots: slots,
		Groups: []sched.Group{{Count: s.Channels, Body: body}}}
	_, text, _ := strings.Cut(p.String(), "ranks 0\n")
	return text, err
}

// actions counts what a rank does in a program, and whether all ranks do as many.
func actions(p *sched.Program) (count int, alike bool) {
	var ready []step.Action
	for r := range p.Ranks {
		m, n := step.New(p, sched.Rank(r)), 0
		for ready = m.Ready(ready[:0]); len(ready) > 0; ready = m.Ready(ready[:0]) {
			for _, a := range ready {
				m.Complete(a.Channel)
				n++
			}
		}
		if r > 0 && n != count {
			return 0, false
		}
		count = n
	}
	return count, true
}

func name(s string) *sched.Expr { return &sched.Expr{Kind: sched.Var, Name: s} }

// place is where a buffer of a part lies in the whole program.
type place struct {
	buf  sched.Buffer
	base *sched.Expr
}

// renamer makes a part's steps those of the whole program.
type renamer struct {
	p     *sched.Program
	rank  *sched.Expr                   // the part's r
	peer  func(*sched.Expr) *sched.Expr // the rank that a part's rank is
	scale func(*sched.Expr) *sched.Expr // chunks of the whole for chunks of the part
	place map[sched.Buffer]place

	// If it is not 0, only these first blocks of a reduce-scatter or an all-gather are there, and steps of the others are left out.
	// Blocks must go straight to their ranks: what a step has in scratch, or in the buffer of one block, is of its own rank's block.
	blocks int
}

func (f *renamer) body(body []sched.Stmt) []sched.Stmt {
	var out []sched.Stmt
	for _, s := range body {
		switch {
		case s.Loop != nil:
			out = append(out, sched.Stmt{Loop: &sched.Loop{Var: s.Loop.Var, Count: f.expr(s.Loop.Count), Body: f.body(s.Loop.Body)}})
		case s.If != nil:
			out = append(out, sched.Stmt{If: &sched.If{Cond: f.expr(s.If.Cond), Then: f.body(s.If.Then), Else: f.body(s.If.Else)}})
		default:
			if step := f.step(s.Step); step.Op != sched.Copy || step.Src.String() != step.Dst.String() {
				out = append(out, f.guard(s.Step, sched.Stmt{Step: step}))
			}
		}
	}
	return out
}

// guard lets a statement that stands for a step run only if its block is there.
func (f *renamer) guard(s *sched.Step, to sched.Stmt) sched.Stmt {
	if f.blocks == 0 {
		return to
	}
	all, block := sched.In, f.rank // the buffer of all blocks
	if f.p.Op == sched.AllGather {
		all = sched.Out
	}
	if s.Op.Reads() && s.Src.Buf == all {
		block = f.expr(s.Src.Index)
	}
	if s.Op.Stores() && s.Dst.Buf == all {
		block = f.expr(s.Dst.Index)
	}
	return sched.Stmt{If: &sched.If{Cond: op(sched.Lt, block, sched.N(f.blocks)), Then: []sched.Stmt{to}}}
}

func (f *renamer) step(s *sched.Step) *sched.Step {
	n := &sched.Step{Op: s.Op}
	if s.Op.Reads() {
		n.Src = f.ref(s.Src)
	}
	if s.Op.Stores() {
		n.Dst = f.ref(s.Dst)
	}
	if s.Op.Receives() {
		n.From = f.peer(f.expr(s.From))
	}
	if s.Op.Sends() {
		n.To = f.peer(f.expr(s.To))
	}
	return n
}

func (f *renamer) ref(r sched.Ref) sched.Ref {
	count := sched.N(1)
	if r.Count != nil {
		count = f.expr(r.Count)
	}
	count = f.scale(count)
	to := f.place[r.Buf]
	out := sched.Ref{Buf: to.buf, Index: op(sched.Add, to.base, f.scale(f.expr(r.Index))), Count: count}
	if count.Kind == sched.Num && count.Val == 1 {
		out.Count = nil
	}
	return out
}

func (f *renamer) expr(e *sched.Expr) *sched.Expr {
	switch e.Kind {
	case sched.Num:
		return e
	case sched.Var:
		switch e.Name {
		case "r":
			return f.rank
		case "n":
			return sched.N(f.p.Ranks)
		case "c":
			return sched.N(0)
		}
		for _, l := range f.p.Lets {
			if l.Name == e.Name {
				return sched.N(int(l.Value))
			}
		}
		return e
	}
	return op(e.Kind, f.expr(e.L), f.expr(e.R))
}
