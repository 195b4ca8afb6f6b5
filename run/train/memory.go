package train

// Memory is what a rank's buffers take, in bytes, after the steps taken so far.
type Memory struct {
	Params  int // 4 bytes a parameter held, padding included
	Grads   int
	Moments int
	// What the formula leaves out:
	Buckets    int // whole buckets of gradients on their way (ZeRO 2 and 3), and gradients narrowed for the wire
	Gathered   int // whole units of parameters (ZeRO 3)
	Activation int // what forward keeps, at most, for micro-batches in flight
	Working    int // of units
	Mirror     int // of what another rank owns, and gradients on their way to the own mirror

	// Formula is what ZeRO's authors count, for float32 throughout, with P parameters a
	// rank (its stage, its share of units) and N replicas: 16 P bytes are 4 of
	// parameters, 4 of gradients and 8 of moments, and there is no second copy of
	// parameters, which mixed precision needs (2 + 2 + 4 + 8, also 16: counted as 12 where
	// the copy of 4 is forgotten).
	//
	//	ZeRO 0   16 P
	//	ZeRO 1   8 P + 8 P/N
	//	ZeRO 2   4 P + 12 P/N
	//	ZeRO 3   16 P/N
	Formula int
}

// Held is what the formula is about.
func (m Memory) Held() int { return m.Params + m.Grads + m.Moments }

// Total is all of it.
func (m Memory) Total() int {
	return m.Held() + m.Buckets + m.Gathered + m.Activation + m.Working + m.Mirror
}

// Formula is the bytes of parameters, gradients and moments of a rank that has
// params parameters in its stage and tensor share.
func Formula(zero, params, replicas int) int {
	p, n := params, max(1, replicas)
	switch zero {
	case 0:
		return 16 * p
	case 1:
		return 8*p + 8*p/n
	case 2:
		return 4*p + 12*p/n
	}
	return 16 * p / n
}

// Memory counts the rank's buffers.
func (t *Trainer) Memory() Memory {
	floats := func(lists ...[]float32) int {
		n := 0
		for _, l := range lists {
			n += 4 * cap(l)
		}
		return n
	}
	_, own := t.Params()
	mirrored := 0
	if m := t.mirror; m != nil {
		mirrored = floats(m.params, m.grads, m.first, m.second, m.out)
	}
	return Memory{
		Mirror: mirrored,
		Params: floats(t.params), Grads: floats(t.grads), Moments: floats(t.first, t.second),
		Buckets: floats(t.spares...) + t.wire.bytes(), Gathered: floats(t.units...),
		Activation: t.kept, Working: t.env.Working(),
		Formula: Formula(t.cfg.Layout.Zero, own, t.cfg.Layout.DP),
	}
}
