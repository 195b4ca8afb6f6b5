package algo

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/sched"
)

//	 domain 0      domain 1
//	0  1  2  3    4  5  6  7     inside: reduce-scatter, rank l of a domain ends
//	│  │  │  │    │  │  │  │     with slice l
//	│  │  │  └────┼──┼──┼──┘     between: all-reduce of slice l among the ranks l
//	│  │  └───────┼──┼──┘        of all domains, its own rail
//	│  └──────────┼──┘           inside: all-gather
//	└─────────────┘
//
// Any algorithm that does reduce-scatter and all-gather serves inside, any that
// does all-reduce between, as long as a copy of it runs on one channel; trees
// climb and descend on one channel here. Their programs are taken as they are,
// with ranks and chunks renamed.
func init() {
	register(&Algorithm{
		Name: "hierarchical", Ops: []sched.Collective{sched.AllReduce},
		Summary:   "large messages over rails: only a share of the data leaves a domain on each",
		Steps:     "inner reduce-scatter + outer all-reduce + inner all-gather; ring in ring: 2(Local-1) + 2(domains-1)",
		Sent:      "ring in ring: 2S(Local-1)/Local inside, 2S(D-1)/(D Local) between D domains",
		Reference: "BlueConnect, Cho et al. 2019",
		Fits: func(s Spec) error {
			if err := whole(s); err != nil {
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
	if inner, err = fits(names[0], IsInner); err != nil {
		return nil, nil, fmt.Errorf("inside a domain: %w", err)
	}
	if outer, err = fits(names[1], IsOuter); err != nil {
		return nil, nil, fmt.Errorf("between domains: %w", err)
	}
	return inner, outer, nil
}

// IsInner reports whether an algorithm may stand inside the domains of
// hierarchical, IsOuter whether it may stand between them.
func IsInner(a *Algorithm) bool {
	return a.Nests && a.Serves(sched.ReduceScatter) && a.Serves(sched.AllGather)
}

// IsOuter: see IsInner.
func IsOuter(a *Algorithm) bool { return a.Nests && a.Serves(sched.AllReduce) }

func hierarchical(s Spec) (string, error) {
	inner, outer, err := s.levels()
	if err != nil {
		return "", err
	}
	local := s.domain()
	domains := s.Ranks / local
	var parts [3]*sched.Program
	for i, sub := range []struct {
		a  *Algorithm
		op sched.Collective
		n  int
	}{{inner, sched.ReduceScatter, local}, {outer, sched.AllReduce, domains}, {inner, sched.AllGather, local}} {
		parts[i], err = sub.a.Program(Spec{Op: sub.op, Ranks: sub.n, flat: true, Slots: s.Slots})
		if err != nil {
			return "", err
		}
	}
	m := parts[1].NumChunks(sched.In) // chunks of a slice; one block of inner is a slice
	slots, scratch := 1, m            // scratch holds the slice between the first two, then what they need
	for i, p := range parts {
		slots = max(slots, p.Slots)
		size := p.NumChunks(sched.Tmp)
		if i != 1 {
			size *= m
		}
		scratch = max(scratch, m+size)
	}
	r, c := name("r"), name("c")
	num := func(v int) *sched.Expr { return sched.N(v) }
	l, g := op(sched.Mod, r, num(local)), op(sched.Div, r, num(local))
	base := op(sched.Mul, c, num(local*m))                 // of the copy
	slice := op(sched.Add, base, op(sched.Mul, l, num(m))) // of the rank
	tmp := op(sched.Mul, c, num(scratch))                  // of the copy
	more := op(sched.Add, tmp, num(m))                     // behind the slice
	scaled := func(e *sched.Expr) *sched.Expr { return op(sched.Mul, e, num(m)) }
	same := func(e *sched.Expr) *sched.Expr { return e }
	inside := func(e *sched.Expr) *sched.Expr { return op(sched.Add, op(sched.Mul, g, num(local)), e) }
	between := func(e *sched.Expr) *sched.Expr { return op(sched.Add, op(sched.Mul, e, num(local)), l) }
	var body []sched.Stmt
	for _, f := range []renamer{
		{p: parts[0], rank: l, peer: inside, scale: scaled, place: map[sched.Buffer]place{
			sched.In: {sched.In, base}, sched.Out: {sched.Tmp, tmp}, sched.Tmp: {sched.Tmp, more}}},
		{p: parts[1], rank: g, peer: between, scale: same, place: map[sched.Buffer]place{
			sched.In: {sched.Tmp, tmp}, sched.Out: {sched.Out, slice}, sched.Tmp: {sched.Tmp, more}}},
		{p: parts[2], rank: l, peer: inside, scale: scaled, place: map[sched.Buffer]place{
			sched.In: {sched.Out, slice}, sched.Out: {sched.Out, base}, sched.Tmp: {sched.Tmp, more}}},
	} {
		body = append(body, f.body(f.p.Groups[0].Body)...)
	}
	p := &sched.Program{Chunks: num(s.Channels * local * m), Scratch: num(s.Channels * scratch), Slots: slots,
		Groups: []sched.Group{{Count: s.Channels, Body: body}}}
	_, text, _ := strings.Cut(p.String(), "ranks 0\n")
	return text, nil
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
				out = append(out, sched.Stmt{Step: step})
			}
		}
	}
	return out
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
