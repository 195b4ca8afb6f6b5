package sched

// RankSlot is the place of r, the rank's position, in an Env.
const RankSlot = slotRank

// ChannelSlot is the place of c, the channel, in an Env.
const ChannelSlot = slotChannel

// Uses reports whether the expression's value may depend on a slot.
func (e *Expr) Uses(slot int) bool {
	switch e.Kind {
	case Num:
		return false
	case Var:
		return e.slot == slot
	case Look:
		return e.L.Uses(slot)
	}
	return e.L.Uses(slot) || e.R.Uses(slot)
}

// Affine reports whether the expression grows by the same amount with every
// step of a slot, whatever else it depends on; by zero if it does not use it.
func (e *Expr) Affine(slot int) bool {
	if !e.Uses(slot) || e.Kind == Var {
		return true
	}
	switch e.Kind {
	case Add, Sub:
		return e.L.Affine(slot) && e.R.Affine(slot)
	case Mul:
		return e.L.Affine(slot) && !e.R.Uses(slot) || e.R.Affine(slot) && !e.L.Uses(slot)
	}
	return false
}

// Turning reports whether the expression has the form (r + something) % n, so
// that it moves round the ring of ranks together with r, by steps of a number of ranks
// after which something is the same again.
func (e *Expr) Turning(by int) bool {
	return e.Kind == Mod && e.R.Kind == Var && e.R.slot == slotRanks && e.L.sloped(by)
}

// sloped reports whether the expression is r plus something that repeats itself.
func (e *Expr) sloped(by int) bool {
	switch e.Kind {
	case Var:
		return e.slot == slotRank
	case Add:
		return e.L.sloped(by) && e.R.Repeats(by) || e.R.sloped(by) && e.L.Repeats(by)
	case Sub:
		return e.L.sloped(by) && e.R.Repeats(by)
	}
	return false
}

// Swapping reports whether the expression has the form r ^ something, so that it is renamed together with r by an exclusive or
// with any multiple of a power of two after which something is the same again.
func (e *Expr) Swapping(by int) bool {
	own := func(x *Expr) bool { return x.Kind == Var && x.slot == slotRank || x.Swapping(by) }
	return e.Kind == Xor && (own(e.L) && e.R.Repeats(by) || own(e.R) && e.L.Repeats(by))
}

// Repeats reports whether the expression is the same for rank r and rank r + by: it
// uses r only as r % d, where d divides by, or not at all. False may also mean that
// this is not seen from the text.
func (e *Expr) Repeats(by int) bool {
	switch e.Kind {
	case Num:
		return true
	case Var:
		return e.slot != slotRank
	case Look:
		return e.L.Repeats(by)
	}
	return e.rankMod(int64(by)) || e.L.Repeats(by) && e.R.Repeats(by)
}

// rankMod reports whether an expression is r % d for a d that divides by.
func (e *Expr) rankMod(by int64) bool {
	return e.Kind == Mod && e.L.Kind == Var && e.L.slot == slotRank && e.R.Kind == Num && e.R.Val > 0 && by%e.R.Val == 0
}
