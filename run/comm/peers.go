package comm

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/transport"
)

// peers are the ranks of a communicator as one of them reaches them, whatever their programs do: their boards, in shared memory or by
// one-sided operations, and what the system says of their processes.
type peers struct {
	world *world
	group *group.Group
	keys  []transport.Key // of the members' boards, where they are not seen
}

// answer is how long ranks have to answer a rank that asks for their boards: their processes have to get a core, no more.
const answer = 400 * time.Millisecond

// address is where the own board lies for the others.
func (p *peers) address() board.Address {
	a := board.Address{Key: p.keys[p.group.Rank]}
	if m := p.world.memory(); m != nil {
		a.Handle, _ = m.Handle(p.group.Mine())
	}
	return a
}

// meet takes in where the boards of the members are.
func (p *peers) meet(at []board.Address) error {
	for i, a := range at {
		if i == p.group.Rank {
			continue
		}
		p.keys[i] = a.Key
		if p.world.mem == nil {
			continue
		}
		m, err := p.group.At(i, a.Handle, board.Size)
		if err != nil {
			return fmt.Errorf("memory of rank %d: %w", i, err)
		}
		p.group.Boards[i] = m
	}
	return nil
}

// leave tells the others that this rank has let go of their boards. Ranks of other hosts hear of it otherwise if this was the last
// communicator: the endpoint is closed.
func (p *peers) leave(last bool) {
	g := p.group
	for i, b := range g.Boards {
		switch {
		case i == g.Rank, b == nil && last:
		case b != nil:
			b.LetGo(g.Rank)
		case g.Alive(i) == nil:
			if at, bit := board.LetGoBit(g.Rank); bit != 0 {
				p.world.verbs.add(g.Members[i], p.keys[i]+transport.Key(at), bit)
			}
		}
	}
}

// onePacket is nearly as much as a packet of Ethernet holds.
const onePacket = 1280

// allBoards gets the boards of the members; nil for those that do not answer.
func (p *peers) allBoards() []board.Board {
	if p.world.mem != nil {
		return p.group.Boards
	}
	list := make([]board.Board, len(p.group.Members))
	list[p.group.Rank] = p.group.Mine()
	reads := make([]reading, len(list))
	for i := range list {
		if i != p.group.Rank && p.group.Alive(i) == nil && !p.state(i).Stopped() {
			reads[i] = p.ask(i)
		}
	}
	end := time.Now().Add(answer)
	for i, r := range reads {
		if r.board != nil && p.came(r, end) {
			list[i] = r.board
		}
	}
	return list
}

// reading is a board that another rank was asked for.
type reading struct {
	board   board.Board // nil if it could not be asked
	tickets [2]transport.Ticket
}

// ask asks a rank of another host for its board. A board is many packets, which a network may carry as one, and what it carries of a
// single packet is asked for as well: a port with too small an MTU may lose either.
func (p *peers) ask(i int) (r reading) {
	b := make(board.Board, board.ShortSize)
	for k, to := range [2][]byte{b, make([]byte, onePacket)} {
		t, err := p.world.verbs.raw.Read(p.group.Members[i], to, p.keys[i])
		if err != nil {
			return reading{}
		}
		r.tickets[k] = t
	}
	r.board = b
	return r
}

// came waits for a board that was asked for, and reports whether it is there.
func (p *peers) came(r reading, end time.Time) bool {
	came := r.board != nil
	for _, t := range r.tickets {
		came = came && p.world.verbs.wait(t, time.Until(end)) == nil
	}
	return came
}

// answers reports whether a rank lives and can be reached from here.
func (p *peers) answers(i int) bool {
	state := p.state(i)
	switch {
	case i == p.group.Rank:
		return true
	case p.group.Alive(i) != nil || state.Stopped():
		return false
	case p.world.mem != nil || state != 0:
		return !state.Ended()
	}
	return p.came(p.ask(i), time.Now().Add(answer))
}

// hasClosed reports whether a rank closed the communicator, which it may long before its process ends.
func (p *peers) hasClosed(rank int) bool {
	mine := p.group.Mine()
	return mine != nil && mine.IsLetGo(rank)
}

// allThere reports whether nobody has ended or closed the communicator, where one look tells: hundreds of ranks of a host that wait
// would spend their time looking at each of the others.
func (p *peers) allThere() bool {
	ep, ok := p.group.Endpoint.(interface{ AllAlive() bool })
	return ok && ep.AllAlive() && !p.group.Mine().AnyLetGo(len(p.group.Members))
}

// sameHost reports whether a rank is on this rank's host.
func (p *peers) sameHost(i int) bool {
	m := p.group.Members
	return p.world.hosts[m[i]] == p.world.hosts[m[p.group.Rank]]
}

// state is the state of a rank's process as the kernel has it, 0 if it is not a process of this host.
func (p *peers) state(i int) blame.State {
	m := p.group.Members[i]
	if !p.sameHost(i) || m >= len(p.world.pids) || p.world.pids[m] <= 0 || p.world.ep.Can().OneProcess {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.world.pids[m]))
	if err != nil {
		return 'X'
	}
	if at := slices.Index(b, ')'); at > 0 && at+2 < len(b) {
		return blame.State(b[at+2])
	}
	return 0
}

// inAll is a rank's number among all ranks of the process's Join.
func (p *peers) inAll(rank int) int {
	m := p.group.Members[rank]
	if p.world.mates != nil {
		m = p.world.mates[m]
	}
	return m
}

// callOn is what a board has of an operation.
func callOn(b board.Board, seq uint64) (call calls.Call, ok bool) {
	if seq == 0 {
		return call, false
	}
	call.Get(b.Call(seq))
	return call, call.Seq == seq
}

// called is what a rank called as an operation; false if its board does not have it any more.
func (p *peers) called(i int, b board.Board, seq uint64) (blame.Call, bool) {
	call, ok := callOn(b, seq)
	if !ok {
		return blame.Call{}, false
	}
	return p.said(i, &call, b.Began(seq)), true
}

// said is a call in words.
func (p *peers) said(i int, call *calls.Call, began int64) blame.Call {
	return blame.Call{Seq: call.Seq, What: call.String(), Sig: call.Signature(), Ago: p.ago(i, began)}
}

// ago says how long ago a rank of the same host began something.
func (p *peers) ago(i int, began int64) string {
	if began == 0 || !p.sameHost(i) {
		return ""
	}
	d := clock.Since(began).Round(100 * time.Microsecond).String()
	if began&clock.Loose != 0 {
		return " at most " + d + " ago"
	}
	return " " + d + " ago"
}

// scene collects what is known of the ranks, as their boards have it, for an operation. Of those
// that do not answer, last gives the call of their last message.
func (p *peers) scene(boards []board.Board, call *calls.Call, last func(rank int) (calls.Call, bool)) *blame.Scene {
	s := &blame.Scene{Rank: p.group.Rank, Ranks: make([]blame.Rank, len(p.group.Members)), Shared: p.world.mem != nil,
		Phase: p.group.Wait.Phase}
	for i, b := range boards {
		r := &s.Ranks[i]
		r.State, r.WaitsFor, r.PairsWith = p.state(i), -1, -1
		if b == nil {
			if call, ok := last(i); ok {
				r.Last = p.said(i, &call, 0)
			}
			continue
		}
		r.Answers, r.Entered = true, b.Entered()
		r.WaitsFor, r.Channel, r.Step = b.Waiting()
		r.PairsWith = b.Pairing()
		r.Last, _ = p.called(i, b, r.Entered)
		r.Mine, _ = p.called(p.group.Rank, boards[p.group.Rank], r.Last.Seq)
		if call != nil {
			r.Here, _ = p.called(i, b, call.Seq)
			r.Done = p.group.Wait.Done(i, b) || s.Phase == blame.Exit && !slices.Contains(p.group.Wait.Readers, int32(i))
		}
	}
	if call != nil {
		s.Call = p.said(p.group.Rank, call, 0)
	}
	return s
}

// readersEntered reports whether every rank that is waited for at the end of an operation entered it, and so may be reading this
// rank's memory.
func (p *peers) readersEntered() bool {
	seq := p.group.Wait.Seq
	return !slices.ContainsFunc(p.group.Wait.Readers, func(i int32) bool { return p.group.Boards[i].Entry(seq).Flag().Load() < seq })
}

// tell leaves a notice with every other rank.
func (p *peers) tell(n *board.Notice) {
	body := n.Body()
	if p.world.mem == nil {
		p.tellFar(n.From, body)
		return
	}
	for i, b := range p.group.Boards {
		if i != p.group.Rank && b != nil && p.group.Alive(i) == nil {
			n.Leave(b, body)
		}
	}
}

// A rank that failed waits for a moment until the others have taken its notice, and goes on
// telling those that have not answered for longer: a packet that is lost takes 200 ms.
const (
	moment  = 100 * time.Millisecond
	telling = 2 * time.Second
)

// tellFar is tell where boards are not seen. Close waits for what goes on after it.
func (p *peers) tellFar(from int, body []byte) {
	told, tellers := make(chan struct{}, len(p.group.Members)), 0
	for i := range p.group.Members {
		if i != p.group.Rank && p.group.Alive(i) == nil && !p.state(i).Stopped() {
			tellers++
			p.world.tellers.start(func() {
				p.tellOne(i, from, body)
				told <- struct{}{}
			})
		}
	}
	timer := time.NewTimer(moment)
	defer timer.Stop()
	for range tellers {
		select {
		case <-told:
		case <-timer.C:
			return
		}
	}
}

// tellers are goroutines that tell other ranks of a failure.
type tellers struct {
	mu   sync.Mutex
	none sync.Cond
	n    int
}

func (t *tellers) start(f func()) {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
	go func() {
		f()
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.n--; t.n == 0 {
			t.none.Broadcast()
		}
	}()
}

// wait returns when all have ended: after the time for telling at most.
func (t *tellers) wait() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.n > 0 {
		t.none.Wait()
	}
}

// tellOne leaves a notice with a rank. The first to claim the notice of a rank writes it. A claim
// must not be left without a notice: nobody else could tell that rank any more.
func (p *peers) tellOne(rank, from int, body []byte) {
	v, to, at := &p.world.verbs, p.group.Members[rank], p.keys[rank]
	end := time.Now().Add(telling)
	var was uint64
	t, err := v.raw.CompareSwap(to, at+board.NoticeAt, 0, board.Writing, &was)
	if err != nil || v.wait(t, telling) != nil || was != 0 {
		return
	}
	v.write(to, at+board.NoticeBody, body)
	t, err = v.raw.CompareSwap(to, at+board.NoticeAt, board.Writing, uint64(from+1), new(uint64))
	if err == nil {
		_ = v.wait(t, time.Until(end)) // this rank may be about to end
	}
}

// spread writes on the boards of the others which operation this rank refused; 0 for none.
func (p *peers) spread(seq uint64) {
	word := board.Refusal(p.group.Rank, seq)
	for i, b := range p.group.Boards {
		switch {
		case i == p.group.Rank:
		case b != nil:
			b.Refuse(word)
		case p.group.Alive(i) == nil:
			p.world.verbs.write(p.group.Members[i], p.keys[i]+board.RefusalAt, binary.LittleEndian.AppendUint64(nil, word))
		}
	}
}

// probing asks ranks that are waited for what they do, without waiting for the answer.
type probing struct {
	mu     sync.Mutex
	next   int64       // when to ask
	rank   int         // that was asked
	board  board.Board // its answer; nil if nobody was asked
	ticket transport.Ticket
	found  error // a rank that makes another call
}

// A rank that waits asks after a while, and from then on every while, whether those that it waits for make the same calls. Ranks
// that call different things may wait for each other without a message that would tell.
const probeAfter, probeEvery = 200 * time.Millisecond, 500 * time.Millisecond

// What is read of a board is loaded a word at once, as its owner stores it.
const _ = uint(transport.Snapshot - board.ShortSize)

// probe finds out whether a rank that the operation under way waits for made another call, now or before. A phase is part of
// an operation of the communicator above it, which a rank that makes another call may not have entered: that one's boards tell.
func (c *Comm) probe(now int64) error {
	top := c
	if c.above != nil {
		top = c.above
	}
	p := &top.probing
	if top.world.mem != nil || top.group.Boards == nil || !p.mu.TryLock() {
		return nil
	}
	defer p.mu.Unlock()
	if top.cur.limit.Load() == 0 { // the operation has just begun
		p.next, p.rank, p.board, p.found = now+int64(probeAfter), -1, nil, nil
		return nil
	}
	if p.board != nil {
		if err := top.world.verbs.look(p.ticket); err == errPending {
			return nil
		} else if err == nil {
			p.found = top.differs(p.rank, p.board)
		}
		if p.board = nil; p.found != nil {
			return p.found
		}
	}
	if now < p.next {
		return nil
	}
	rank := c.awaited(p.rank)
	if p.rank = rank; rank < 0 { // all that are waited for were asked
		p.next = now + int64(probeEvery)
		return nil
	}
	b := make(board.Board, board.ShortSize)
	if t, err := top.world.verbs.raw.Read(top.group.Members[rank], b, top.keys[rank]); err == nil {
		p.board, p.ticket = b, t
	}
	return nil
}

// mismatch is what was found in the operation under way, if anything.
func (p *probing) mismatch() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.found
}

// awaited is the first rank behind another that the wait needs, by its number in the communicator whose operation this is; -1 if
// there is none.
func (c *Comm) awaited(after int) int {
	g, best := c.group, -1
	consider := func(i int) {
		if r := c.numberAbove(i); r > after && (best < 0 || r < best) {
			best = r
		}
	}
	if g.Wait.Phase == blame.Messages {
		if i, _, _ := g.Mine().Waiting(); i >= 0 && i < g.Size() && i != g.Rank {
			consider(i)
		}
		return best
	}
	for i, b := range g.Boards {
		if i != g.Rank && b != nil && !g.Wait.Done(i, b) {
			consider(i)
		}
	}
	return best
}

// numberAbove is the number of a rank in the communicator whose phases this one carries out, or in this one if it carries out none's.
func (c *Comm) numberAbove(i int) int {
	if c.above == nil {
		return i
	}
	l := c.above.levels
	if c == l.inner {
		return l.order[l.base[l.home]+i]
	}
	return l.order[l.base[i]+l.seat]
}

// differs is the first operation of which a rank's board has another call than this rank's; nil if there is none.
func (p *peers) differs(i int, theirs board.Board) error {
	mine := p.group.Mine()
	last, lead := mine.Entered(), theirs.Entered()
	const torn = 4 // operations whose lines a rank that goes on may have written anew while they were read
	from := max(last, lead+torn)
	for seq := from - min(from, board.Window) + 1; seq <= min(last, lead); seq++ {
		a, known := callOn(mine, seq)
		if b, ok := callOn(theirs, seq); ok && known && a.Signature() != b.Signature() {
			return calls.Mismatch(p.group.Rank, i, &a, &b)
		}
	}
	return nil
}
