// Package blame finds the rank that blocks an operation. It is pure: the ranks' boards go in, a sentence and the ranks at fault come
// out. Every mode uses it, as do sends and receives.
//
// It answers two questions:
//
//	Ask     a rank is gone: does this wait still need it?
//	Judge   a wait ended without success: which ranks are at fault, and how do we say it?
package blame

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Phase is what an operation waits for.
type Phase uint8

// The phases.
const (
	Entry    Phase = iota // the others to enter
	Sums                  // the sums of the others
	Exit                  // the others to be done with this rank's memory
	Messages              // a message, or room for one
	Pieces                // pieces of the other's input and sums
	Input                 // pieces of another's input
)

var phases = [...]string{"entry", "sums", "exit", "messages", "pieces", "input"}

func (p Phase) String() string { return phases[p] }

// Kind is what went wrong.
type Kind uint8

// The kinds.
const (
	Dead     Kind = iota + 1 // a rank died
	Left                     // a rank closed the communicator
	Mismatch                 // ranks made different calls
	Timeout                  // the time limit passed
	Refused                  // a rank sends what another does not take
)

// Call is an operation as a rank entered it.
type Call struct {
	Seq  uint64 // 0 if there was none
	What string // in words
	Sig  uint64 // equal for equal calls
	Ago  string // how long ago, in words with a space before; may be empty
}

// Rank is what is known of a rank.
type Rank struct {
	Answers   bool   // its board can be read
	Last      Call   // the operation that it entered last; of a rank that does not answer, that of its last message
	Entered   uint64 // the highest operation that it entered
	Here      Call   // what it entered under the number of the operation in question; Seq 0 if it is not known
	Mine      Call   // what this rank entered under the number of Last; Seq 0 if it is not known
	Done      bool   // it did its part of the phase
	State     State  // of its process
	WaitsFor  int    // the rank whose message its operation waits for, -1 for none
	Channel   int    // and on which channel
	Step      int    // and at which step
	PairsWith int    // the rank that its send or receive waits for, -1 for none
	Elsewhere string // the operation of another communicator in which it waits for this rank; empty for none
}

// elsewhere says in which other communicator the rank waits.
func (r *Rank) elsewhere() string {
	if r.Elsewhere == "" {
		return ""
	}
	return "; it waits in " + r.Elsewhere + ", which this rank has not entered"
}

// State is the state of a process of this host as the kernel has it: a letter, 0 if it is not known.
type State byte

// Stopped reports whether the process was stopped by a signal or a debugger.
func (s State) Stopped() bool { return s == 'T' || s == 't' }

// Ended reports whether the process is over.
func (s State) Ended() bool { return s == 'Z' || s == 'X' }

func (s State) String() string {
	switch s {
	case 'T', 't':
		return "; its process is stopped"
	case 'D':
		return "; its process is in uninterruptible sleep"
	case 'Z', 'X':
		return "; its process ended"
	}
	return ""
}

// Scene is what Judge looks at.
type Scene struct {
	Rank   int // that asks
	Ranks  []Rank
	Waited time.Duration

	Call   Call // the operation that is late, or
	Phase  Phase
	Shared bool // ranks see one another's memory: they may be operations apart

	Message string // the send or receive that is late: "send to" or "receive from"; empty for an operation
	Peer    int    // and its other rank

	Lost Loss // or the rank that is gone
}

// Loss is a rank that is gone.
type Loss struct {
	Gone   bool
	Rank   int
	Why    string
	Closed bool // it closed the communicator, rather than died

	Parted bool // the link with it is lost, and it may live
	Lives  bool // it does: the fault is between it and the rank that asks

	Refused bool // it lives, and one of the two does not take what the other sends, as Why says
	Sender  int  // whose frames are not taken
}

// Verdict is what is found.
type Verdict struct {
	Kind     Kind
	Culprits []int // in order
	Text     string
	Report   []string // a line a rank
	Differs  int      // the rank whose call differs from this rank's, -1 if none was found
	Seq      uint64   // and in which operation
}

// Judge finds out which ranks are at fault.
func Judge(s *Scene) Verdict {
	switch {
	case s.Lost.Gone:
		return s.lost()
	case s.Message != "":
		return s.lateMessage()
	}
	return s.lateOperation()
}

// lost tells the end of a rank and what it was last seen doing.
func (s *Scene) lost() Verdict {
	if s.Lost.Refused {
		return Verdict{Kind: Refused, Culprits: []int{s.Lost.Sender}, Text: s.Lost.Why, Differs: -1}
	}
	r := &s.Ranks[s.Lost.Rank]
	last := "it took part in no operation"
	switch {
	case r.Last.Seq > 0 && r.Answers:
		last = fmt.Sprintf("it last entered operation %d (%s)%s", r.Last.Seq, r.Last.What, r.Last.Ago)
	case r.Last.Seq > 0: // it may have gone on to others
		last = fmt.Sprintf("its last message here was of operation %d (%s)", r.Last.Seq, r.Last.What)
	case !r.Answers:
		last = "no operation of it was seen"
	}
	kind, end := Left, "closed the communicator"
	if !s.Lost.Closed {
		kind, end = Dead, fmt.Sprintf("died (%s)", s.Lost.Why)
	}
	if s.Lost.Parted {
		end = fmt.Sprintf("cannot be reached by rank %d (%s)", s.Rank, s.Lost.Why)
	}
	if s.Lost.Lives {
		return Verdict{Kind: Dead, Culprits: Sorted(s.Rank, s.Lost.Rank),
			Text: fmt.Sprintf("rank %d and rank %d lost each other (%s)", s.Rank, s.Lost.Rank, s.Lost.Why), Differs: -1}
	}
	return Verdict{Kind: kind, Culprits: []int{s.Lost.Rank}, Text: fmt.Sprintf("rank %d %s; %s", s.Lost.Rank, end, last), Differs: -1}
}

// lateOperation tells which rank waits for which, since when, at which step, and what each was last seen doing.
func (s *Scene) lateOperation() Verdict {
	v := Verdict{Kind: Timeout, Differs: -1}
	var missing, behind []int
	for i := range s.Ranks {
		if i == s.Rank {
			continue
		}
		line, place := s.seen(i, &v)
		v.Report = append(v.Report, fmt.Sprintf("rank %d: %s", i, line))
		switch place {
		case absent:
			missing = append(missing, i)
		case slow:
			behind = append(behind, i)
		}
	}
	if v.Differs >= 0 {
		v.Kind, v.Culprits = Mismatch, Sorted(s.Rank, v.Differs)
		return v
	}
	if a, b := s.crossed(missing); a >= 0 {
		v.Kind, v.Culprits = Mismatch, Sorted(a, b)
		v.Text = fmt.Sprintf("rank %d waits for rank %d in a send or receive, and rank %d for it in this operation: one of them makes its calls in another order; after %s at %s",
			a, b, b, s.Waited, s.Phase)
		return v
	}
	if s.Shared {
		missing = s.hindmost(missing)
	}
	s.accuse(&v, missing, behind)
	return v
}

// accuse names who is at fault, of those that did not enter the operation, or of those that did not go on in it if all have entered.
// Stopped processes are at fault before those that wait for them.
func (s *Scene) accuse(v *Verdict, missing, behind []int) {
	what := "did not enter it"
	if v.Culprits = s.awaited(missing); len(missing) == 0 {
		v.Culprits, what = s.chain(behind), "entered it but did not go on"
	}
	if stopped := s.stopped(v.Culprits); len(stopped) > 0 {
		v.Culprits = stopped
	}
	v.Text = fmt.Sprintf("time limit passed after %s at %s: ", s.Waited, s.Phase)
	if len(v.Culprits) == 0 {
		v.Text += "every other rank entered it and did its part, so nobody seems to be at fault; the time limit may be too short for this operation on a busy host"
	} else {
		v.Text += fmt.Sprintf("%s %s; %s", Names(v.Culprits), what, s.lastWords(v))
	}
}

// Where a rank is, seen from the operation in question.
const (
	done = iota
	absent
	slow
)

// seen says what a rank was last seen doing, and notes in the verdict if it made another call than this one.
func (s *Scene) seen(i int, v *Verdict) (line string, place int) {
	r, n := &s.Ranks[i], s.Call.Seq
	if !r.Answers {
		if r.Last.Seq >= n && r.Last.Seq > 0 {
			return fmt.Sprintf("sent messages of operation %d, does not answer now", r.Last.Seq), slow
		}
		return fmt.Sprintf("does not answer%s", r.State), absent
	}
	last := r.Last
	if last.Seq > n && r.Here.Seq == n && r.Here.Sig != s.Call.Sig { // it went on, but what it did here is still known
		last = r.Here
	}
	differs := func(seq uint64) {
		if v.Differs < 0 {
			v.Differs, v.Seq = i, seq
		}
	}
	switch {
	case last.Seq == 0:
		return fmt.Sprintf("took part in no operation yet%s%s", r.State, r.elsewhere()), absent
	case last.Seq < n:
		if r.Mine.Seq == last.Seq && r.Mine.Sig != last.Sig {
			differs(last.Seq)
		}
		return fmt.Sprintf("last entered operation %d (%s)%s%s%s", last.Seq, last.What, last.Ago, r.State, r.elsewhere()), absent
	case last.Seq == n && last.Sig != s.Call.Sig:
		differs(n)
		return fmt.Sprintf("entered operation %d as %s%s%s", n, last.What, last.Ago, r.State), done
	}
	at := ""
	if !r.Done {
		place, at = slow, ", not done with it"
		if s.Phase == Messages && r.WaitsFor >= 0 {
			at = fmt.Sprintf(", waits for rank %d at step %d of channel %d", r.WaitsFor, r.Step, r.Channel)
		}
	}
	return fmt.Sprintf("entered operation %d (%s)%s%s%s", last.Seq, last.What, last.Ago, at, r.State), place
}

// chain follows the waits from this rank on, to a rank that waits for nobody, or round in a circle.
func (s *Scene) chain(behind []int) []int {
	if s.Phase != Messages {
		return behind
	}
	seen := map[int]bool{}
	for at := s.Rank; !seen[at]; {
		seen[at] = true
		next := s.Ranks[at].WaitsFor
		if !s.Ranks[at].Answers || next < 0 || next >= len(s.Ranks) {
			return []int{at}
		}
		at = next
	}
	return behind
}

// crossed finds a rank that is missing because it waits in a send or receive for one that is not; -1 if there is none.
func (s *Scene) crossed(missing []int) (waits, here int) {
	for _, i := range missing {
		if p := s.pairsWith(i); p >= 0 && !slices.Contains(missing, p) {
			return i, p
		}
	}
	return -1, -1
}

// awaited replaces missing ranks that wait for others, in sends and receives or in an operation before this one, by the ranks at
// the end of those waits.
func (s *Scene) awaited(missing []int) []int {
	var ends []int
	for _, at := range missing {
		for range s.Ranks {
			p := s.pairsWith(at)
			if p < 0 {
				p = s.waitsBefore(at)
			}
			if p < 0 {
				break
			}
			at = p
		}
		ends = append(ends, at)
	}
	return Sorted(ends...)
}

// waitsBefore is the rank whose message another one waits for, far away, in an operation before this one; -1 if it waits for none.
func (s *Scene) waitsBefore(i int) int {
	r := &s.Ranks[i]
	if s.Shared || !r.Answers || r.State.Stopped() || r.Last.Seq >= s.Call.Seq || r.WaitsFor < 0 || r.WaitsFor >= len(s.Ranks) ||
		r.WaitsFor == i || r.WaitsFor == s.Rank {
		return -1
	}
	return r.WaitsFor
}

// pairsWith is the rank that a rank's send or receive waits for; -1 if it waits for none, or is stopped.
func (s *Scene) pairsWith(i int) int {
	r := &s.Ranks[i]
	if !r.Answers || r.State.Stopped() || r.PairsWith < 0 || r.PairsWith >= len(s.Ranks) || r.PairsWith == i {
		return -1
	}
	return r.PairsWith
}

// hindmost are the ranks of a list that entered the fewest operations: a rank ahead may wait for one behind, but not the
// other way round.
func (s *Scene) hindmost(list []int) (out []int) {
	least := ^uint64(0)
	for _, i := range list {
		at := s.Ranks[i].Entered
		if at < least {
			least, out = at, nil
		}
		if at == least {
			out = append(out, i)
		}
	}
	return out
}

// stopped are the ranks of a list whose processes are stopped.
func (s *Scene) stopped(list []int) (out []int) {
	for _, i := range list {
		if s.Ranks[i].State.Stopped() {
			out = append(out, i)
		}
	}
	return out
}

// lastWords is the report of the first culprit.
func (s *Scene) lastWords(v *Verdict) string {
	if v.Culprits[0] == s.Rank {
		return fmt.Sprintf("rank %d is this rank, and waits for no other", s.Rank)
	}
	prefix := fmt.Sprintf("rank %d: ", v.Culprits[0])
	for _, line := range v.Report {
		if strings.HasPrefix(line, prefix) {
			return line
		}
	}
	return ""
}

// lateMessage tells why a send or receive was late. If the other rank waits for a third one in a send or receive, that one is
// at fault. If it is in an operation that this rank has not entered, the two ranks differ.
func (s *Scene) lateMessage() Verdict {
	v := Verdict{Kind: Timeout, Differs: -1}
	why := fmt.Sprintf("time limit passed: %s rank %d", s.Message, s.Peer)
	at := s.Peer
	for range s.Ranks {
		r := &s.Ranks[at]
		if !r.Answers {
			v.Culprits, v.Text = []int{at}, fmt.Sprintf("%s: rank %d does not answer%s", why, at, r.State)
			return v
		}
		if r.Last.Seq > s.Ranks[s.Rank].Last.Seq {
			v.Kind, v.Culprits = Mismatch, Sorted(at, s.Rank)
			v.Text = fmt.Sprintf("%s: rank %d is in operation %d (%s)%s, which rank %d has not entered",
				why, at, r.Last.Seq, r.Last.What, r.Last.Ago, s.Rank)
			return v
		}
		next := s.pairsWith(at)
		if next == s.Rank {
			v.Kind, v.Culprits = Mismatch, Sorted(at, s.Rank)
			v.Text = fmt.Sprintf("%s, while rank %d waits for rank %d: they differ in what they send and receive", why, at, s.Rank)
			return v
		}
		if next < 0 {
			break
		}
		why += fmt.Sprintf(", which waits for rank %d", next)
		at = next
	}
	v.Culprits, v.Text = []int{at}, fmt.Sprintf("%s, which did not come%s", why, s.Ranks[at].State)
	return v
}

// Sorted is a list of ranks in order, each once.
func Sorted(list ...int) []int {
	slices.Sort(list)
	return slices.Compact(list)
}

// Names are ranks in words.
func Names(list []int) string {
	if len(list) == 1 {
		return fmt.Sprintf("rank %d", list[0])
	}
	return fmt.Sprintf("ranks %s", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list)), ", "), "[]"))
}
