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
// that it moves round the ring of ranks together with r.
func (e *Expr) Turning() bool {
	return e.Kind == Mod && e.R.Kind == Var && e.R.slot == slotRanks && e.L.sloped()
}

// sloped reports whether the expression is r plus something without r.
func (e *Expr) sloped() bool {
	switch e.Kind {
	case Var:
		return e.slot == slotRank
	case Add:
		return e.L.sloped() && !e.R.Uses(slotRank) || e.R.sloped() && !e.L.Uses(slotRank)
	case Sub:
		return e.L.sloped() && !e.R.Uses(slotRank)
	}
	return false
}
