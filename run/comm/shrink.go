package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/clique"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/retry"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/witness"
)

// shrink is how survivors agree on their new group. It is Paxos with the boards of the ranks for acceptors. Boards are read and
// changed with one-sided operations, so a rank votes whatever it is doing, and in shared memory even if it is stopped or dead.
//
//	want     every rank writes on its own board that it wants to go on, where its next board is, and which ranks it reaches
//	promise  a candidate makes boards promise to take part in no earlier ballot, by compare and swap of their votes
//	accept   it writes a record on them, which ranks are in, and makes them accept it. If one of them had accepted a record
//	         before, the candidate takes that one, because it may have been chosen
//	chosen   a record that enough boards accepted is chosen. It is written on all boards, marked as chosen, and all ranks take it
//
// The candidate is the lowest of the ranks that want to go on. It begins when all ranks that live want to, or after a grace. If it
// gets nowhere the next one tries, with a higher ballot.
//
// It proposes the most ranks of which every two reach each other (package clique): a candidate may reach two ranks that do not reach one
// another, and a group with both of them would fail at once. What it does not reach it does not know. So every rank writes down how many
// it found, and who found most comes first. Any two majorities share a rank, and all members of the largest group know it, so a
// candidate of a smaller majority reads of the larger one.
//
// Which boards are enough: with a majority (Config.Quorum) more than half of the ranks of the communicator, or half of them with
// rank 0. Any two such sets share a board, so there is one decision. With a witness, half of them with its vote instead: it votes
// like a board, and is asked only by a half, which cannot do without it. Without a majority, every rank that lives and is not
// stopped. The boards of the others tell what was decided without them: in shared memory they stay when their ranks end. Ranks of
// one host that share no memory have a ledger instead: a record is chosen once it stands there, and the first one counts.
type shrink struct {
	*peers
	id    uint32 // of the communicator
	ctx   context.Context
	next  board.Address // of this rank's next board
	epoch uint64        // that begins
	began int64
	end   int64
	grace time.Duration

	ballot board.Ballot          // the highest that was seen
	wants  map[int]board.Address // ranks that were seen to want to go on, and their next boards
	seen   []bool                // ranks whose boards answered since this call began
	sees   [][]bool              // whom the ranks reach, by their own words; nil for those that have not looked yet
	most   []int                 // the size of the largest connected group that the ranks know of
	torn   []int                 // the largest connected group, if connections make it too small to go on
	silent []int                 // ranks whose vote was missing in the last attempt
	after  int64                 // when this rank may make an attempt; 0 if it is not yet time
	looked int64                 // how long the longest look at the boards took
	unseen []int                 // ranks whose boards did not answer the last one
	chosen int64                 // when a record was found to be chosen

	mute      error // why the witness did not answer when it was asked last; nil if it did
	muteSince int64 // and since when
}

// Grace is how long Shrink waits for ranks that live and do not call it, or half of the time limit if that is less.
const Grace = 2 * time.Second

// A candidate leaves the one before it alone for the time of ten looks at the boards, as an attempt takes four of them, and for
// this at least.
const stagger = 50 * time.Millisecond

// agree gives the ranks that are in, the new communicator's number, and where the ranks' next boards are.
func (s *shrink) agree() (members []int, id uint32, at []board.Address, err error) {
	if len(s.group.Members) > board.MaxShrink {
		return nil, 0, nil, fmt.Errorf("%d ranks are too many to shrink; the most are %d", len(s.group.Members), board.MaxShrink)
	}
	s.began, s.wants = clock.Now(), map[int]board.Address{}
	n := len(s.group.Members)
	s.seen, s.sees, s.most = make([]bool, n), make([][]bool, n), make([]int, n)
	s.grace = min(Grace, time.Duration(s.end-s.began)/2)
	s.group.Mine().Propose(s.epoch, s.next)
	for pauses := retry.Pause(50*time.Microsecond, 5*time.Millisecond); ; {
		began := clock.Now()
		boards := s.allBoards()
		s.looked = max(s.looked, clock.Now()-began)
		s.look(boards)
		record := chosenOf(boards)
		if record == nil && s.turn() {
			record = s.attempt(boards)
		}
		if record != nil {
			s.group.Mine().WriteOwn(record.Encode()) // for those that cannot read it elsewhere
			if !record.Has(s.group.Rank) {
				return nil, 0, nil, s.fails(Excluded, nil, s.whyExcluded(record))
			}
			if members, at := s.membersOf(record); members != nil {
				return members, record.ID, at, nil
			}
		}
		if err := s.over(record != nil); err != nil {
			return nil, 0, nil, err
		}
		_ = pauses.Wait(s.ctx)
	}
}

// look takes in what boards say. If another candidate is at work, this rank leaves it alone for a while.
func (s *shrink) look(boards []board.Board) {
	was := s.ballot
	defer func() {
		if s.ballot > was {
			s.after = 0
		}
	}()
	s.unseen = nil
	for i, b := range boards {
		if b == nil {
			s.unseen = append(s.unseen, i)
			continue
		}
		s.ballot, s.seen[i] = max(s.ballot, b.Vote().Promised), true
		if b.Proposes(s.epoch) {
			s.wants[i] = b.Next()
		}
		if s.most[i] = b.Most(); b.Sees(i) {
			s.sees[i] = make([]bool, len(boards))
			for k := range boards {
				s.sees[i][k] = b.Sees(k)
			}
		}
	}
	s.tellReach()
}

// tellReach writes on the own board which ranks this one reaches: those that may come and answered since this call began.
func (s *shrink) tellReach() {
	var r board.Record
	mine := make([]bool, len(s.group.Members))
	for i := range mine {
		if mine[i] = s.seen[i] && s.expects(i); mine[i] {
			r.Add(i)
		}
	}
	s.sees[s.group.Rank] = mine
	ranks := s.willing()
	if s.most[s.group.Rank] = len(ranks); !s.whole() {
		s.most[s.group.Rank] = len(s.connected(ranks))
	}
	s.group.Mine().SetSees(r.In, s.most[s.group.Rank])
}

// apart reports whether one of two ranks says that it does not reach the other. One that has not looked says nothing.
func (s *shrink) apart(a, b int) bool {
	return s.sees[a] != nil && !s.sees[a][b] || s.sees[b] != nil && !s.sees[b][a]
}

// connected gives the most of some ranks that all reach one another.
func (s *shrink) connected(ranks []int) []int {
	list := clique.Largest(len(ranks), func(a, b int) bool { return s.apart(ranks[a], ranks[b]) })
	for i, at := range list {
		list[i] = ranks[at]
	}
	return list
}

// willing are the ranks that want to go on and may come.
func (s *shrink) willing() (ranks []int) {
	for i := range s.group.Members {
		if _, wants := s.wants[i]; wants && s.expects(i) {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// whyExcluded says why a record does not have this rank.
func (s *shrink) whyExcluded(r *board.Record) error {
	var far []int
	for i := range s.group.Members {
		if r.Has(i) && s.apart(i, s.group.Rank) {
			far = append(far, i)
		}
	}
	if len(far) > 0 {
		return fmt.Errorf("the other ranks went on without this one: it cannot reach %s", blame.Names(far))
	}
	return errors.New("the other ranks went on without this one: it came too late")
}

// chosenOf finds a record that was chosen; nil if there is none.
func chosenOf(boards []board.Board) *board.Record {
	for _, b := range boards {
		if b == nil {
			continue
		}
		if r, ok := b.Chosen(); ok {
			return &r
		}
	}
	return nil
}

// expects reports whether a rank may come: it lives and has not closed the communicator.
func (s *shrink) expects(i int) bool {
	return i == s.group.Rank || s.group.Alive(i) == nil && !s.hasClosed(i)
}

// turn reports whether this rank is to make an attempt now.
func (s *shrink) turn() bool {
	now, before, all := clock.Now(), 0, true
	for i := range s.group.Members {
		_, wants := s.wants[i]
		if expected := s.expects(i); expected && !wants {
			all = false
		} else if expected && s.precedes(i) {
			before++
		}
	}
	all = all && s.whole()
	if !all && now-s.began < int64(s.grace) {
		s.after = 0
		return false
	}
	if s.after == 0 {
		s.after = now + int64(before)*max(int64(stagger), 10*s.looked)
	}
	return now >= s.after
}

// precedes reports whether a rank is to make an attempt before this one.
func (s *shrink) precedes(i int) bool {
	most, own := s.most[i], s.most[s.group.Rank]
	return most > own || most == own && i < s.group.Rank
}

// whole reports whether all ranks that want to go on, and none but these, are seen by each of them. What is missing may come yet.
func (s *shrink) whole() bool {
	ranks, in := s.willing(), make([]bool, len(s.group.Members))
	for _, i := range ranks {
		in[i] = true
	}
	return !slices.ContainsFunc(ranks, func(i int) bool { return !slices.Equal(s.sees[i], in) })
}

// attempt tries to have a record chosen; nil if it was not.
func (s *shrink) attempt(boards []board.Board) *board.Record {
	n := len(s.group.Members)
	own := (s.ballot/board.Ballot(n)+1)*board.Ballot(n) + board.Ballot(s.group.Rank)
	asks := make([]voted, n)
	for i, b := range boards {
		if asks[i].ok = b != nil; b != nil {
			asks[i].vote = b.Vote()
		}
	}
	promised := func(v board.Vote) (board.Vote, bool) {
		return board.Vote{Promised: own, Accepted: v.Accepted}, v.Promised < own
	}
	s.cast(asks, promised)
	s.after = 0
	var tie tied
	if s.isHalf(asks) && !s.ask(&tie, nil, promised) || !s.isHalf(asks) && !s.enough(asks) {
		return nil
	}
	record := s.proposal(asks, &tie)
	if record == nil {
		return nil
	}
	record.Ballot, record.Chosen = own, 0
	s.group.Mine().WriteOwn(record.Encode())
	s.write(asks, record)
	for i := range asks {
		asks[i].vote.Promised = own
	}
	accepted := func(v board.Vote) (board.Vote, bool) {
		return board.Vote{Promised: own, Accepted: own}, v.Promised == own
	}
	s.cast(asks, accepted)
	// A witness that was not asked for its promise takes part in this ballot as well: a promise is only that it leaves earlier ones.
	late := func(v board.Vote) (board.Vote, bool) {
		return board.Vote{Promised: own, Accepted: own}, v.Promised <= own
	}
	if s.isHalf(asks) && !s.ask(&tie, record.Encode(), late) || !s.isHalf(asks) && !s.enough(asks) {
		return nil
	}
	if record = s.enterLedger(record); record == nil {
		return nil
	}
	record.Ballot, record.Chosen = own, own
	for i := range asks {
		asks[i].ok = true // all are told, those that did not answer as well
	}
	s.write(asks, record)
	return record
}

// enterLedger gives the record that the ledger has, which is this one if there was none; nil if it cannot be asked.
func (s *shrink) enterLedger(r *board.Record) *board.Record {
	w := s.world
	if w.ledger == nil {
		return r
	}
	text, err := w.ledger.Decide(witness.Key{World: w.id, Comm: s.id, Epoch: s.epoch}, r.Encode())
	if err != nil {
		return nil
	}
	if first, ok := board.DecodeRecord(text); ok {
		return &first
	}
	return nil
}

// isHalf reports whether the boards that are ok are half of all, and there is a witness to decide.
func (s *shrink) isHalf(asks []voted) bool {
	yes, _ := s.count(asks)
	return s.world.witness != nil && 2*yes == len(asks)
}

// tied is what the witness was found to say.
type tied struct {
	vote   board.Vote
	record []byte
}

// ask changes the vote of the witness as next says, with the record that is voted for if there is one, and reports whether that was done.
func (s *shrink) ask(t *tied, record []byte, next func(was board.Vote) (board.Vote, bool)) bool {
	w := s.world
	ctx, cancel := context.WithTimeout(s.ctx, answer)
	defer cancel()
	for {
		to, agrees := next(t.vote)
		s.ballot = max(s.ballot, t.vote.Promised)
		if !agrees {
			return false
		}
		found, kept, err := w.witness.Swap(ctx, witness.Key{World: w.id, Comm: s.id, Epoch: s.epoch}, t.vote.Word(), to.Word(), record)
		if err != nil && s.mute == nil {
			s.muteSince = clock.Now()
		}
		if s.mute = err; err != nil {
			return false
		}
		was := t.vote
		t.vote, t.record = board.VoteOf(found), kept
		if t.vote == was {
			t.vote = to
			return true
		}
	}
}

// voted is a board that is asked for its vote.
type voted struct {
	vote    board.Vote // as far as it is known
	ok      bool       // it is to be asked; then, whether its vote became what was wanted
	refuses bool
}

// cast changes the votes of the boards that are to be asked as next says, which may refuse.
func (s *shrink) cast(asks []voted, next func(was board.Vote) (board.Vote, bool)) {
	v := &s.world.verbs
	type posted struct {
		rank   int
		ticket transport.Ticket
		was    *uint64
	}
	var open []posted
	ask := func(i int) {
		a := &asks[i]
		for {
			to, agrees := next(a.vote)
			s.ballot = max(s.ballot, a.vote.Promised)
			if !agrees {
				a.ok, a.refuses = false, true
				return
			}
			b := s.group.Boards[i]
			if b == nil { // far away
				was := new(uint64)
				t, err := v.raw.CompareSwap(s.group.Members[i], s.keys[i]+board.VoteAt, a.vote.Word(), to.Word(), was)
				if a.ok = err == nil; a.ok {
					open = append(open, posted{i, t, was})
				}
				return
			}
			found := b.SwapVote(a.vote, to)
			if found == a.vote {
				return
			}
			a.vote = found
		}
	}
	for i := range asks {
		if asks[i].ok {
			ask(i)
		}
	}
	for end := time.Now().Add(answer); len(open) > 0; {
		p := open[0]
		open = open[1:]
		a := &asks[p.rank]
		if v.wait(p.ticket, time.Until(end)) != nil {
			a.ok = false
		} else if found := board.VoteOf(*p.was); found != a.vote {
			a.vote = found
			ask(p.rank)
		}
	}
}

// write writes a record on the boards that are ok. They are no longer if that cannot be done.
func (s *shrink) write(asks []voted, r *board.Record) {
	v, text := &s.world.verbs, r.Encode()
	tickets := make([]transport.Ticket, len(asks))
	for i := range asks {
		if !asks[i].ok {
			continue
		}
		if b := s.group.Boards[i]; b != nil {
			b.WriteRecord(s.group.Rank, text)
			continue
		}
		var err error
		tickets[i], err = v.raw.Write(s.group.Members[i], s.keys[i]+transport.Key(board.RecordAt(s.group.Rank)), text)
		asks[i].ok = err == nil
	}
	end := time.Now().Add(answer)
	for i, t := range tickets {
		if asks[i].ok && t != 0 && !s.state(i).Stopped() {
			asks[i].ok = v.wait(t, time.Until(end)) == nil
		}
	}
}

// proposal is the record that was accepted in the highest ballot, or else that of the ranks that want to go on; nil if the first
// cannot be read now. The candidate whose ballot it was has it, and so have the boards that accepted it; or there is a later proposal
// of that candidate, which is as good: had the first been chosen, the later one would be the same. A candidate with the same slot
// may have written over it. If then its own candidate is dead and every rank that lives answers, nobody can have taken the record.
func (s *shrink) proposal(asks []voted, tie *tied) *board.Record {
	highest := tie.vote.Accepted
	for _, a := range asks {
		if a.ok {
			highest = max(highest, a.vote.Accepted)
		}
	}
	if r, ok := board.DecodeRecord(tie.record); ok && highest > 0 && highest == tie.vote.Accepted {
		return &r
	}
	if highest > 0 {
		boards, n := s.allBoards(), board.Ballot(len(s.group.Members))
		if r := chosenOf(boards); r != nil {
			return r
		}
		by := int(highest % n)
		for i, b := range boards {
			if b == nil {
				continue
			}
			if r, ok := b.Own(); ok && i == by && r.Ballot >= highest {
				return &r
			}
			if r, ok := b.Record(by); ok && r.Ballot >= highest && int(r.Ballot%n) == by {
				return &r
			}
		}
		if s.world.majority || s.group.Alive(by) == nil {
			return nil
		}
	}
	ranks := s.willing()
	list := s.connected(ranks)
	if s.torn = nil; s.world.majority && len(list) < len(ranks) && !s.mayGoOn(list) {
		s.torn = list
		return nil
	}
	r := &board.Record{ID: s.world.number()}
	for _, i := range list {
		r.Add(i)
	}
	return r
}

// mayGoOn reports whether a group is a majority, or half of all ranks with rank 0 or a witness.
func (s *shrink) mayGoOn(list []int) bool {
	return isMajority(len(list), len(s.group.Members), s.world.witness != nil || slices.Contains(list, 0))
}

// enough reports whether the boards that are ok are enough to decide.
func (s *shrink) enough(asks []voted) bool {
	yes, no := s.count(asks)
	if s.world.majority {
		return isMajority(yes, len(asks), asks[0].ok && s.world.witness == nil)
	}
	return no == 0 && len(s.silent) == 0
}

// count gives how many boards are ok, and how many refuse; it notes which ranks do not answer though they are not known to be gone.
func (s *shrink) count(asks []voted) (yes, no int) {
	s.silent = nil
	for i, a := range asks {
		if a.ok {
			yes++
		} else if a.refuses {
			no++
		} else if s.group.Alive(i) == nil && !s.state(i).Stopped() {
			s.silent = append(s.silent, i)
		}
	}
	return yes, no
}

// isMajority reports whether some ranks of n are a majority: more than half, or half with rank 0.
func isMajority(some, n int, withFirst bool) bool {
	return 2*some > n || 2*some == n && withFirst
}

// membersOf gives the members that a record names and where their next boards are; nil if that is not known yet. That of a rank
// that died or does not answer is nowhere: the new group will find out.
func (s *shrink) membersOf(r *board.Record) (members []int, at []board.Address) {
	now := clock.Now()
	if s.chosen == 0 {
		s.chosen = now
	}
	for i := range s.group.Members {
		if !r.Has(i) {
			continue
		}
		next, known := s.wants[i]
		if !known && s.group.Alive(i) == nil && now-s.chosen < int64(s.grace) {
			return nil, nil
		}
		members, at = append(members, i), append(at, next)
	}
	return members, at
}

// over is nil, or why there is no use in going on.
func (s *shrink) over(decided bool) error {
	if err := s.ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return s.fails(Aborted, []int{s.group.Rank}, err)
	}
	now := clock.Now()
	if !decided && s.world.majority && now-s.began > int64(s.grace) {
		var gone []int
		for i := range s.group.Members {
			if s.group.Alive(i) != nil && i != s.group.Rank {
				gone = append(gone, i)
			}
		}
		// A rank that this one never talked to is not known to be gone when the link to it is. After an outage's time it is.
		if now-s.began > int64(s.grace+s.world.cfg.outage()) {
			gone = s.unseen
		}
		first := !slices.Contains(gone, 0)
		left := len(s.group.Members) - len(gone)
		if s.world.witness != nil && 2*left == len(s.group.Members) {
			if s.mute == nil { // is it there? Other candidates may be before this one
				s.ask(&tied{}, nil, func(was board.Vote) (board.Vote, bool) { return was, was == board.Vote{} })
			}
			if first = true; s.mute != nil && now-s.muteSince > int64(s.grace) {
				return s.fails(NoQuorum, gone,
					fmt.Errorf("%s cannot be reached, the %d that are left are half of %d, and the witness that decides between halves does not answer: %w",
						blame.Names(gone), left, len(s.group.Members), s.mute))
			}
		}
		if s.torn != nil {
			return s.fails(NoQuorum, gone, fmt.Errorf("no majority of the %d ranks can all reach one another: the most that can are %d (%s)",
				len(s.group.Members), len(s.torn), blame.Names(s.torn)))
		}
		if !isMajority(left, len(s.group.Members), first) {
			return s.fails(NoQuorum, gone,
				fmt.Errorf("%s cannot be reached, and the remaining %d are not a majority of %d; if those ranks are known to be dead, WEFT_QUORUM=any continues without them",
					blame.Names(gone), left, len(s.group.Members)))
		}
	}
	if now <= s.end {
		return nil
	}
	why := fmt.Errorf("the survivors did not agree within %s", time.Duration(now-s.began).Round(time.Millisecond))
	if len(s.silent) > 0 {
		why = fmt.Errorf("%w: no answer from %s", why, blame.Names(s.silent))
	}
	return s.fails(Timeout, s.silent, why)
}

// fails is the failure of the call.
func (s *shrink) fails(k Kind, culprits []int, why error) *Failure {
	return &Failure{Kind: k, Rank: s.group.Rank, Culprits: culprits, Err: fmt.Errorf("shrink to epoch %d: %w", s.epoch, why),
		alias: s.aliases(culprits)}
}
