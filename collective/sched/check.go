package sched

import "fmt"

// Env gives the numbers of a rank at a position of a channel, with no loop under way.
func (p *Program) Env(pos int64, channel int) Env {
	var e Env
	e[slotRank], e[slotRanks], e[slotChannel] = pos, int64(p.Ranks), int64(channel)
	for i, l := range p.Lets {
		if slotFirst+i < maxNames {
			e[slotFirst+i] = l.Value
		}
	}
	return e
}

// Slot gives the place of the loop's variable in an Env.
func (l *Loop) Slot() int { return l.slot }

// Check reports what can be wrong with a program without running it. Programs
// built in Go must pass it too; it also resolves the names of their variables.
func (p *Program) Check() error {
	for _, check := range []func() error{p.checkHead, p.checkNames, p.checkChunks, p.checkOrders} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkHead reports what is missing or too much.
func (p *Program) checkHead() error {
	switch {
	case p.Name == "":
		return fmt.Errorf("the program has no name")
	case p.Op < AllReduce || p.Op > Barrier:
		return fmt.Errorf("program %s says no collective it is for", p.Name)
	case p.Ranks < 1:
		return fmt.Errorf("program %s has %d ranks; at least one is needed", p.Name, p.Ranks)
	case p.Root >= p.Ranks:
		return fmt.Errorf("program %s has root %d of %d ranks", p.Name, p.Root, p.Ranks)
	}
	return p.checkRoom()
}

// checkRoom reports what is missing or too much of chunks, slots and channels.
func (p *Program) checkRoom() error {
	switch {
	case p.Chunks == nil:
		return fmt.Errorf("program %s does not say how many chunks there are", p.Name)
	case p.Slots < 1:
		return fmt.Errorf("program %s has %d slots; at least one is needed", p.Name, p.Slots)
	case len(p.Groups) == 0:
		return fmt.Errorf("program %s has no channels", p.Name)
	case p.Channels() > maxChannels:
		return fmt.Errorf("program %s has %d channels; the limit is %d", p.Name, p.Channels(), maxChannels)
	case len(p.Orders) > p.Channels():
		return fmt.Errorf("program %s orders channel %d but has %d channels", p.Name, len(p.Orders)-1, p.Channels())
	}
	return nil
}

// checkNames resolves the names of variables.
func (p *Program) checkNames() error {
	names := []string{"r", "n", "c"}
	for _, l := range p.Lets {
		names = append(names, l.Name)
	}
	if len(names) > maxNames {
		return fmt.Errorf("program %s has more than %d names", p.Name, maxNames)
	}
	if err := p.checkTables(); err != nil {
		return fmt.Errorf("program %s: %w", p.Name, err)
	}
	r := &resolver{scope{names, p.Tables}}
	for _, e := range []*Expr{p.Chunks, p.Scratch} {
		if err := r.expr(e); err != nil {
			return fmt.Errorf("program %s: %w", p.Name, err)
		}
	}
	for i := range p.Groups {
		if p.Groups[i].Count < 1 {
			return fmt.Errorf("program %s: a group of %d channels", p.Name, p.Groups[i].Count)
		}
		if err := r.body(p.Groups[i].Body, 0); err != nil {
			return fmt.Errorf("program %s: %w", p.Name, err)
		}
	}
	return nil
}

// checkChunks reports numbers of chunks that cannot be.
func (p *Program) checkChunks() error {
	env := p.Env(0, 0)
	chunks := p.Chunks.Eval(&env)
	if why := env.Undefined(); why != "" {
		return fmt.Errorf("program %s: chunks %s %s", p.Name, p.Chunks, why)
	}
	if p.Scratch != nil {
		scratch := p.Scratch.Eval(&env)
		if why := env.Undefined(); why != "" {
			return fmt.Errorf("program %s: scratch %s %s", p.Name, p.Scratch, why)
		}
		if scratch < 0 || scratch > 1<<40 {
			return fmt.Errorf("program %s has %d chunks of scratch", p.Name, scratch)
		}
	}
	if chunks < 1 || chunks > 1<<40 {
		return fmt.Errorf("program %s has %d chunks", p.Name, chunks)
	}
	if p.Op.Blocks() && chunks%int64(p.Ranks) != 0 {
		return fmt.Errorf("program %s has %d chunks, which %d ranks cannot share evenly", p.Name, chunks, p.Ranks)
	}
	return nil
}

// checkOrders reports orders of ranks that are no permutations.
func (p *Program) checkOrders() error {
	for c, order := range p.Orders {
		if order == nil {
			continue
		}
		seen := make([]bool, p.Ranks)
		for _, r := range order {
			if int(r) >= p.Ranks || r < 0 || seen[r] {
				return fmt.Errorf("program %s: the order of channel %d is not a permutation of its %d ranks: rank %d", p.Name, c, p.Ranks, r)
			}
			seen[r] = true
		}
		if len(order) != p.Ranks {
			return fmt.Errorf("program %s: the order of channel %d has %d of %d ranks", p.Name, c, len(order), p.Ranks)
		}
	}
	return nil
}

// checkTables reports what can be wrong with the tables alone.
func (p *Program) checkTables() error {
	names := map[string]bool{"r": true, "n": true, "c": true, "in": true, "out": true, "tmp": true}
	for _, l := range p.Lets {
		names[l.Name] = true
	}
	for _, t := range p.Tables {
		switch {
		case !plainName(t.Name):
			return fmt.Errorf("table %q: a name is letters, digits and _, and begins with a letter", t.Name)
		case names[t.Name]:
			return fmt.Errorf("table %s: the name is taken", t.Name)
		case len(t.Values) == 0:
			return fmt.Errorf("table %s is empty", t.Name)
		}
		names[t.Name] = true
	}
	return nil
}

func (p *Program) hasTable(name string) bool {
	for i := range p.Tables {
		if p.Tables[i].Name == name {
			return true
		}
	}
	return false
}

// resolver gives every variable its slot. One that has it is not written to again:
// goroutines that share a program may all check it.
type resolver struct{ scope scope }

// expr finds the slot of every name. It writes only what changes, so that checking a program again, from several
// goroutines, does not race.
func (r *resolver) expr(e *Expr) error {
	if e == nil {
		return nil
	}
	if e.Kind == Var {
		slot, ok := r.scope.find(e.Name)
		if !ok {
			return fmt.Errorf("unknown name %q; known here: %s", e.Name, join(r.scope.names))
		}
		if e.slot != slot {
			e.slot = slot
		}
		return nil
	}
	if e.Kind == Num {
		return nil
	}
	if e.Kind == Look {
		return r.look(e)
	}
	if e.L == nil || e.R == nil {
		return fmt.Errorf("an expression %q lacks a side", kindSigns[e.Kind])
	}
	if err := r.expr(e.L); err != nil {
		return err
	}
	return r.expr(e.R)
}

// look binds a lookup to its table. As with the slots of names, what is right already is not written again: programs in
// use are checked, too, while others read them.
func (r *resolver) look(e *Expr) error {
	values, err := r.scope.table(e.Name)
	switch {
	case err != nil:
		return err
	case e.L == nil:
		return fmt.Errorf("table %s is looked up without an index", e.Name)
	case len(e.table) != len(values) || len(values) > 0 && &e.table[0] != &values[0]:
		e.table = values
	}
	return r.expr(e.L)
}

func (r *resolver) loop(l *Loop, depth int) error {
	if err := r.expr(l.Count); err != nil {
		return err
	}
	if len(r.scope.names) == maxNames {
		return fmt.Errorf("more than %d names at once", maxNames)
	}
	r.scope.names = append(r.scope.names, l.Var)
	if slot := len(r.scope.names) - 1; l.slot != slot {
		l.slot = slot
	}
	err := r.body(l.Body, depth)
	r.scope.names = r.scope.names[:len(r.scope.names)-1]
	return err
}

func (r *resolver) choice(c *If, depth int) error {
	if err := r.expr(c.Cond); err != nil {
		return err
	}
	if err := r.body(c.Then, depth); err != nil {
		return err
	}
	return r.body(c.Else, depth)
}

func (r *resolver) body(body []Stmt, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("statements nest deeper than %d", maxDepth)
	}
	for _, s := range body {
		var err error
		switch {
		case s.Step != nil:
			err = r.step(s.Step)
		case s.Loop != nil:
			err = r.loop(s.Loop, depth+1)
		case s.If != nil:
			err = r.choice(s.If, depth+1)
		default:
			err = fmt.Errorf("an empty statement")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// step checks that a step has exactly the operands that its operation needs.
func (r *resolver) step(s *Step) error {
	if s.Op < Send || s.Op > Wait {
		return fmt.Errorf("unknown step %d", s.Op)
	}
	need := func(on bool, what string, e *Expr) error {
		if on && e == nil {
			return fmt.Errorf("%s does not say %s", s.Op, what)
		}
		if !on {
			return nil
		}
		return r.expr(e)
	}
	for _, c := range []struct {
		on   bool
		what string
		e    *Expr
	}{
		{s.Op.Reads(), "what it reads", s.Src.Index}, {s.Op.Stores(), "where it stores", s.Dst.Index},
		{s.Op.Receives(), "from whom", s.From}, {s.Op.Sends(), "to whom", s.To},
		{s.Op == Wait, "for which channel", s.Channel}, {s.Op == Wait, "for how many steps", s.Done},
		{s.Src.Count != nil, "how many chunks", s.Src.Count}, {s.Dst.Count != nil, "how many chunks", s.Dst.Count},
	} {
		if err := need(c.on, c.what, c.e); err != nil {
			return err
		}
	}
	return s.checkBuffers()
}

func (s *Step) checkBuffers() error {
	if s.Op.Stores() && s.Dst.Buf == In {
		return fmt.Errorf("%s writes to in, which belongs to the caller", s)
	}
	if s.Op.Reads() && (s.Src.Buf < In || s.Src.Buf > Tmp) || s.Op.Stores() && (s.Dst.Buf < In || s.Dst.Buf > Tmp) {
		return fmt.Errorf("%s names no buffer", s.Op)
	}
	return nil
}
