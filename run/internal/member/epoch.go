package member

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Member is one process of an epoch.
type Member struct {
	ID         ID
	Life       uint64 // tells a process from an earlier or later one of the same id; chosen by it when it starts
	Recovering bool   // watched and watching, but not in the group that trains; active from a later epoch on
}

// Epoch is a numbered member list. It is never changed once made.
type Epoch struct {
	Number    uint64
	Leader    ID
	Observers int      // of each member, at most
	AfterStep uint64   // the active members change over once this step is done; 0: at once
	Halt      Reason   // if set, members leave cleanly with a checkpoint
	Members   []Member // ascending by id

	watching   [][]int32 // by index of Members: its observers, and
	watched    [][]int32 // those that it observes
	recovering bool      // some member is
	first      int32     // active member
}

// number is 0 before the first epoch.
func (e *Epoch) number() uint64 {
	if e == nil {
		return 0
	}
	return e.Number
}

// Index is a member's place in the list, or -1.
func (e *Epoch) Index(id ID) int {
	if e == nil {
		return -1
	}
	lo, hi := 0, len(e.Members)
	if int(id) < hi && e.Members[id].ID == id { // ids are mostly dense
		return int(id)
	}
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if e.Members[mid].ID < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(e.Members) && e.Members[lo].ID == id {
		return lo
	}
	return -1
}

// Active lists the members that train, ascending; a member's rank is its place here.
func (e *Epoch) Active() []ID {
	var ids []ID
	for i := range e.Members {
		if !e.Members[i].Recovering {
			ids = append(ids, e.Members[i].ID)
		}
	}
	return ids
}

// ObserversOf lists who watches a member, in an epoch that a machine has taken up.
func (e *Epoch) ObserversOf(id ID) []ID {
	i := e.Index(id)
	if i < 0 || e.watching == nil {
		return nil
	}
	ids := make([]ID, len(e.watching[i]))
	for j, o := range e.watching[i] {
		ids[j] = e.Members[o].ID
	}
	return ids
}

// String lists runs of members as r0-7. Members that recover make runs of their own.
func (e *Epoch) String() string {
	if e == nil {
		return "epoch 0: no members"
	}
	s := fmt.Sprintf("epoch %d:", e.Number)
	for i := 0; i < len(e.Members); i++ {
		from, m := i, e.Members[i]
		for i+1 < len(e.Members) && e.Members[i+1].ID == e.Members[i].ID+1 && e.Members[i+1].Recovering == m.Recovering {
			i++
		}
		s += fmt.Sprintf(" r%d", m.ID)
		if i > from {
			s += fmt.Sprintf("-%d", e.Members[i].ID)
		}
		if m.Recovering {
			s += "(recovering)"
		}
	}
	if e.AfterStep > 0 {
		s += fmt.Sprintf(" after step %d", e.AfterStep)
	}
	if e.Halt != NoReason {
		s += " halt: " + e.Halt.String()
	}
	return s
}

// check says what is wrong with a list that came from outside.
func (e *Epoch) check() error {
	if e.Number == 0 {
		return errors.New("member: epoch 0 has no member list; they count from 1")
	}
	if e.Observers < 1 || e.Observers > MaxObservers {
		return fmt.Errorf("member: epoch %d has %d observers; from 1 to %d are possible", e.Number, e.Observers, MaxObservers)
	}
	for i := range e.Members {
		if e.Members[i].ID == Nobody {
			return fmt.Errorf("member: epoch %d lists the id %d, which is reserved for no member", e.Number, Nobody)
		}
		if i > 0 && e.Members[i-1].ID >= e.Members[i].ID {
			return fmt.Errorf("member: epoch %d lists r%d after r%d; ids must ascend", e.Number, e.Members[i].ID, e.Members[i-1].ID)
		}
	}
	return nil
}

// mix is splitmix64's finaliser: every bit of x moves every bit of the result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// wire computes who observes whom: the next member on every ring, or the one
// after it if that one observes already. It takes K sorts of n numbers, 4 ms for
// 10,000 members (BenchmarkGraph).
func (e *Epoch) wire() {
	n, k := len(e.Members), e.Observers
	e.first = int32(slices.IndexFunc(e.Members, func(m Member) bool { return !m.Recovering }))
	e.recovering = slices.ContainsFunc(e.Members, func(m Member) bool { return m.Recovering })
	e.watching, e.watched = make([][]int32, n), make([][]int32, n)
	if n < 2 {
		return
	}
	k = min(k, n-1)
	flat := make([]int32, 0, n*k)
	for i := range e.watching {
		e.watching[i] = flat[i*k : i*k : (i+1)*k]
	}
	type place struct {
		hash  uint64
		index int32
	}
	ring := make([]place, n)
	for j := range k {
		for i := range ring {
			ring[i] = place{mix(uint64(e.Members[i].ID) | uint64(j)<<32), int32(i)}
		}
		slices.SortFunc(ring, func(a, b place) int {
			return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.index, b.index))
		})
		for p := range ring {
			i := ring[p].index
			for step := 1; ; step++ {
				o := ring[(p+step)%n].index
				if o != i && !slices.Contains(e.watching[i], o) {
					e.watching[i] = append(e.watching[i], o)
					break
				}
			}
		}
	}
	degree := make([]int32, n)
	for i := range e.watching {
		for _, o := range e.watching[i] {
			degree[o]++
		}
	}
	flat = make([]int32, n*k)
	at := int32(0)
	for o, d := range degree {
		e.watched[o] = flat[at : at : at+d]
		at += d
	}
	for i := range e.watching {
		for _, o := range e.watching[i] {
			e.watched[o] = append(e.watched[o], int32(i))
		}
	}
}

// Change is an epoch as the difference from the one before it.
type Change struct {
	Number    uint64
	Leader    ID
	Observers int
	AfterStep uint64
	Halt      Reason
	Gone      []ID     // ascending
	Came      []Member // new, or changed; ascending
}

// change is what leads from one epoch to the next.
func change(from, to *Epoch) Change {
	c := Change{Number: to.Number, Leader: to.Leader, Observers: to.Observers, AfterStep: to.AfterStep, Halt: to.Halt}
	var old []Member
	if from != nil {
		old = from.Members
	}
	i, j := 0, 0
	for i < len(old) || j < len(to.Members) {
		switch {
		case j == len(to.Members) || i < len(old) && old[i].ID < to.Members[j].ID:
			c.Gone = append(c.Gone, old[i].ID)
			i++
		case i == len(old) || to.Members[j].ID < old[i].ID:
			c.Came = append(c.Came, to.Members[j])
			j++
		default:
			if old[i] != to.Members[j] {
				c.Came = append(c.Came, to.Members[j])
			}
			i, j = i+1, j+1
		}
	}
	return c
}

// apply gives the epoch that a change leads to.
func (c *Change) apply(from *Epoch) *Epoch {
	e := &Epoch{Number: c.Number, Leader: c.Leader, Observers: c.Observers, AfterStep: c.AfterStep, Halt: c.Halt}
	var old []Member
	if from != nil {
		old = from.Members
	}
	e.Members = make([]Member, 0, len(old)+len(c.Came))
	gone, came := c.Gone, c.Came
	for _, m := range old {
		for len(came) > 0 && came[0].ID < m.ID {
			e.Members = append(e.Members, came[0])
			came = came[1:]
		}
		for len(gone) > 0 && gone[0] < m.ID {
			gone = gone[1:]
		}
		switch {
		case len(came) > 0 && came[0].ID == m.ID:
			e.Members = append(e.Members, came[0])
			came = came[1:]
		case len(gone) > 0 && gone[0] == m.ID:
		default:
			e.Members = append(e.Members, m)
		}
	}
	e.Members = append(e.Members, came...)
	return e
}

// Book keeps the latest epochs, each once, so that machines that share a book
// share the lists: 10,000 simulated ranks have one of 10,000 members between
// them instead of 10,000. A process has one machine and one book.
type Book struct {
	pages [32]page
	next  int
	cfg   *Config    // of the latest machine
	spare []Outbound // for the next machine that has something to send
}

// config gives a pointer to a configuration that machines share as long as it is the same.
func (b *Book) config(c Config) *Config {
	if b.cfg == nil || *b.cfg != c {
		b.cfg = &c
	}
	return b.cfg
}

type page struct {
	from   *Epoch
	change Change
	epoch  *Epoch
}

func equal(a, b *Change) bool {
	return a.Number == b.Number && a.Leader == b.Leader && a.Observers == b.Observers && a.AfterStep == b.AfterStep && a.Halt == b.Halt &&
		slices.Equal(a.Gone, b.Gone) && slices.Equal(a.Came, b.Came)
}

// turn gives the epoch after another.
func (b *Book) turn(from *Epoch, c *Change) (*Epoch, error) {
	if c.Number != from.number()+1 {
		return nil, fmt.Errorf("member: change to epoch %d applied to epoch %d", c.Number, from.number())
	}
	for i := range b.pages {
		if p := &b.pages[i]; p.epoch != nil && p.from == from && equal(&p.change, c) {
			return p.epoch, nil
		}
	}
	e := c.apply(from)
	if err := e.check(); err != nil {
		return nil, err
	}
	e = b.keep(e)
	b.pages[b.next] = page{from, *c, e}
	b.next = (b.next + 1) % len(b.pages)
	return e, nil
}

// same reports whether two epochs say the same.
func (e *Epoch) same(o *Epoch) bool {
	return e.Number == o.Number && e.Leader == o.Leader && e.Observers == o.Observers && e.AfterStep == o.AfterStep && e.Halt == o.Halt &&
		slices.Equal(e.Members, o.Members)
}

// keep gives the one copy of an epoch, wired.
func (b *Book) keep(e *Epoch) *Epoch {
	for i := range b.pages {
		p := b.pages[i].epoch
		if p == e || p != nil && p.same(e) {
			return p
		}
	}
	if e.watching == nil {
		own := *e
		e = &own
		e.wire()
	}
	b.pages[b.next] = page{nil, Change{}, e}
	b.next = (b.next + 1) % len(b.pages)
	return e
}
