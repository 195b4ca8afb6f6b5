package step

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// Conn is the ordered way of messages from one rank to another on a channel.
type Conn struct {
	From, To sched.Rank
	Channel  int32
}

// Exchange holds the messages under way between ranks of one process, whatever
// a message is in that world.
type Exchange[M any] struct {
	slots int64
	conns map[Conn]*queue[M]
}

type queue[M any] struct {
	msgs []M
	head int
	recv thread // the thread that waits for a message, if any
	send thread // the thread that waits for room, if any
}

type thread struct {
	rank    sched.Rank
	channel int32
	waits   bool
}

// NewExchange makes an empty one with a number of slots for each connection.
func NewExchange[M any](slots int) *Exchange[M] {
	return &Exchange[M]{slots: int64(slots), conns: map[Conn]*queue[M]{}}
}

func (x *Exchange[M]) at(c Conn) *queue[M] {
	q := x.conns[c]
	if q == nil {
		q = &queue[M]{}
		x.conns[c] = q
	}
	return q
}

// ways gives the connections that an action of a rank receives from and sends
// on; nil where it does not.
func (x *Exchange[M]) ways(r sched.Rank, a *Action) (from, to *queue[M]) {
	if a.Op.Receives() {
		from = x.at(Conn{a.From, r, a.Channel})
	}
	if a.Op.Sends() {
		to = x.at(Conn{r, a.To, a.Channel})
	}
	return from, to
}

// len is how many messages are under way.
func (q *queue[M]) len() int64 {
	if q == nil {
		return 0
	}
	return int64(len(q.msgs) - q.head)
}

func (q *queue[M]) push(m M) { q.msgs = append(q.msgs, m) }

func (q *queue[M]) pop() M {
	m := q.msgs[q.head]
	var zero M
	q.msgs[q.head] = zero
	if q.head++; q.head == len(q.msgs) {
		q.msgs, q.head = q.msgs[:0], 0
	}
	return m
}

// Left lists the connections with messages that nobody took, in order.
func (x *Exchange[M]) Left() []Conn {
	var left []Conn
	for c, q := range x.conns {
		if q.len() > 0 {
			left = append(left, c)
		}
	}
	slices.SortFunc(left, func(a, b Conn) int {
		return slices.Compare([]int32{int32(a.From), int32(a.To), a.Channel}, []int32{int32(b.From), int32(b.To), b.Channel})
	})
	return left
}

// Stuck is a deadlock: nobody can go on, and what each one waits for.
type Stuck struct {
	Program string
	Blocked []Blocked // in order of rank and channel
	Cycle   []Blocked // some of them, each waiting for the next, the last for the first; nil if they wait for one that ended
}

// Blocked is an action that cannot start.
type Blocked struct {
	Rank   sched.Rank
	Action Action
	For    sched.Rank // whom it waits for
	Room   bool       // for room rather than for a message
	Wait   bool       // at a Wait for another channel of its own
}

func (b Blocked) String() string {
	switch {
	case b.Wait:
		return fmt.Sprintf("rank %d channel %d waits for another channel of its own", b.Rank, b.Action.Channel)
	case b.Room:
		return fmt.Sprintf("rank %d channel %d step %d (%s) waits for rank %d to take a message",
			b.Rank, b.Action.Channel, b.Action.Step, &b.Action, b.For)
	}
	return fmt.Sprintf("rank %d channel %d step %d (%s) waits for a message of rank %d",
		b.Rank, b.Action.Channel, b.Action.Step, &b.Action, b.For)
}

func (s *Stuck) Error() string {
	if s.Cycle == nil {
		return fmt.Sprintf("%s: deadlock: %s, which never comes", s.Program, s.Blocked[0])
	}
	var ranks []string
	for _, b := range s.Cycle {
		ranks = append(ranks, fmt.Sprint(b.Rank))
	}
	return fmt.Sprintf("%s: deadlock: ranks %s wait for one another: %s", s.Program, strings.Join(ranks, ", "), s.Cycle[0])
}

// Run carries out a whole program in one process. It calls do for every action
// in an order that the contract allows, with the message received if there is
// one, and passes on the message that do returns if the action sends. A program
// in which no two channels of a rank touch the same chunk without an order
// between them gives the same result in any other order, too: messages between
// two ranks keep theirs, so every rank sees the same messages whatever runs first.
func Run[M any](p *sched.Program, do func(r sched.Rank, a *Action, message M) (M, error)) error {
	return RunIn(p, nil, do)
}

// RunIn is Run in an order of the caller's: pick(k) says which of the k channels
// goes next that can go on or have not been looked at; nil means the oldest.
func RunIn[M any](p *sched.Program, pick func(k int) int, do func(r sched.Rank, a *Action, message M) (M, error)) error {
	x := NewExchange[M](p.Slots)
	world := p.Ranks + p.Switches
	code := Compile(p)
	machines := make([]*Machine, world)
	held := make([][]Action, world) // handed out and not carried out, by channel
	var ready []thread
	var buf []Action
	collect := func(r sched.Rank) error {
		buf = machines[r].Ready(buf[:0])
		for _, a := range buf {
			held[r][a.Channel] = a
			ready = append(ready, thread{r, a.Channel, true})
		}
		return machines[r].Err()
	}
	for r := range world {
		machines[r] = code.Machine(sched.Rank(r))
		held[r] = make([]Action, p.Channels())
		if err := collect(sched.Rank(r)); err != nil {
			return err
		}
	}
	for head := 0; head < len(ready); head++ {
		if pick != nil {
			i := head + pick(len(ready)-head)
			ready[head], ready[i] = ready[i], ready[head]
		}
		t := ready[head]
		if head > 1<<16 && head > len(ready)/2 {
			ready = append(ready[:0], ready[head:]...)
			head = 0
		}
		a := &held[t.rank][t.channel]
		from, to := x.ways(t.rank, a)
		switch Held(a.Op, from.len(), to.len(), x.slots) {
		case NoMessage:
			from.recv = t
			continue
		case NoRoom:
			to.send = t
			continue
		}
		var message M
		if from != nil {
			message = from.pop()
			if from.send.waits {
				ready = append(ready, from.send)
				from.send.waits = false
			}
		}
		message, err := do(t.rank, a, message)
		if err != nil {
			return err
		}
		if to != nil {
			to.push(message)
			if to.recv.waits {
				ready = append(ready, to.recv)
				to.recv.waits = false
			}
		}
		*a = Action{}
		machines[t.rank].Complete(t.channel)
		if err := collect(t.rank); err != nil {
			return err
		}
	}
	return finished(p, machines, held, x)
}

// finished says which ranks are stuck, or which messages were never taken.
func finished[M any](p *sched.Program, machines []*Machine, held [][]Action, x *Exchange[M]) error {
	s := &Stuck{Program: p.Name}
	for r, m := range machines {
		if m.Done() {
			continue
		}
		for c := range held[r] {
			a := held[r][c]
			if a.Op == 0 {
				continue
			}
			b := Blocked{Rank: sched.Rank(r), Action: a, For: a.From}
			from, to := x.ways(b.Rank, &a)
			if Held(a.Op, from.len(), to.len(), x.slots) == NoRoom {
				b.For, b.Room = a.To, true
			}
			s.Blocked = append(s.Blocked, b)
		}
		for _, c := range m.Waiting() {
			s.Blocked = append(s.Blocked, Blocked{Rank: sched.Rank(r), Action: Action{Channel: c}, For: sched.Rank(r), Wait: true})
		}
	}
	if len(s.Blocked) > 0 {
		s.Cycle = cycle(s.Blocked)
		return s
	}
	if left := x.Left(); len(left) > 0 {
		c := left[0]
		return fmt.Errorf("%s: rank %d never takes %d messages that rank %d sends it on channel %d",
			p.Name, c.To, x.at(c).len(), c.From, c.Channel)
	}
	return nil
}

// cycle follows each rank to the one it waits for until a rank comes up again.
func cycle(blocked []Blocked) []Blocked {
	byRank := map[sched.Rank]int{}
	for i, b := range blocked {
		if _, ok := byRank[b.Rank]; !ok {
			byRank[b.Rank] = i
		}
	}
	seen := map[int]int{}
	var path []Blocked
	for i := 0; ; {
		if at, ok := seen[i]; ok {
			return path[at:]
		}
		seen[i] = len(path)
		path = append(path, blocked[i])
		next, ok := byRank[blocked[i].For]
		if !ok {
			return nil
		}
		i = next
	}
}

// Needs gives the least number of slots, from enough on, with which a program
// ends. The error is that of a program which does not end with the slots it has.
func Needs(p *sched.Program, enough int) (int, error) {
	run := func(slots int) error {
		q := *p
		q.Slots = slots
		return Run(&q, func(sched.Rank, *Action, struct{}) (struct{}, error) { return struct{}{}, nil })
	}
	if enough >= p.Slots || run(enough) == nil {
		return enough, nil
	}
	if err := run(p.Slots); err != nil {
		return 0, err
	}
	few, many := enough, p.Slots // the first do not do, the others do
	for many-few > 1 {
		if mid := few + (many-few)/2; run(mid) == nil {
			many = mid
		} else {
			few = mid
		}
	}
	return many, nil
}
