package algo

import "github.com/weft-fabric/weft/collective/sched"

// op makes an expression, simplified where a side is a number or both are the
// same, so that a program reads as if written by hand for its numbers.
func op(k sched.Kind, l, r *sched.Expr) *sched.Expr {
	e := &sched.Expr{Kind: k, L: l, R: r}
	is := func(e *sched.Expr, v int64) bool { return e.Kind == sched.Num && e.Val == v }
	if l.Kind == sched.Num && r.Kind == sched.Num {
		if v := e.Eval(new(sched.Env)); v >= 0 {
			return sched.N(int(v))
		}
		return e
	}
	switch k {
	case sched.Add:
		switch {
		case is(l, 0):
			return r
		case is(r, 0):
			return l
		case r.Kind == sched.Num && l.Kind == sched.Add && l.R.Kind == sched.Num:
			return op(sched.Add, l.L, op(sched.Add, l.R, r))
		}
	case sched.Sub:
		switch {
		case is(r, 0):
			return l
		case same(l, r):
			return sched.N(0)
		case l.Kind == sched.Add && same(l.R, r):
			return l.L
		case r.Kind == sched.Sub && same(l, r.L): // a-(a-b)
			return r.R
		}
	case sched.Mul:
		switch {
		case is(l, 0) || is(r, 0):
			return sched.N(0)
		case is(l, 1):
			return r
		case is(r, 1):
			return l
		}
	case sched.Div:
		if is(r, 1) {
			return l
		}
	case sched.Mod:
		if is(r, 1) {
			return sched.N(0)
		}
	}
	return e
}

func same(a, b *sched.Expr) bool { return a.String() == b.String() }

func simplified(e *sched.Expr, one bool) *sched.Expr {
	switch {
	case e == nil || e.Kind == sched.Num:
		return e
	case e.Kind == sched.Var:
		if one && e.Name == "c" {
			return sched.N(0)
		}
		return e
	case e.Kind == sched.Look:
		return &sched.Expr{Kind: sched.Look, Name: e.Name, L: simplified(e.L, one)}
	}
	return op(e.Kind, simplified(e.L, one), simplified(e.R, one))
}

// tidy simplifies every expression of a program. Where there is one channel, c is 0.
func tidy(p *sched.Program) {
	one := p.Channels() == 1
	simple := func(e *sched.Expr) *sched.Expr { return simplified(e, one) }
	var walk func(body []sched.Stmt)
	walk = func(body []sched.Stmt) {
		for _, s := range body {
			switch {
			case s.Loop != nil:
				s.Loop.Count = simple(s.Loop.Count)
				walk(s.Loop.Body)
			case s.If != nil:
				s.If.Cond = simple(s.If.Cond)
				walk(s.If.Then)
				walk(s.If.Else)
			default:
				st := s.Step
				for _, e := range []**sched.Expr{&st.Src.Index, &st.Src.Count, &st.Dst.Index, &st.Dst.Count, &st.From, &st.To, &st.Channel, &st.Done} {
					*e = simple(*e)
				}
			}
		}
	}
	p.Chunks, p.Scratch = simple(p.Chunks), simple(p.Scratch)
	for i := range p.Groups {
		walk(p.Groups[i].Body)
	}
}
