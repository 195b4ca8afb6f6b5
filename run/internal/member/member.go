// Package member is membership, epochs and failure states as a pure state
// machine: inputs carry the time, outputs are values, and nothing is called.
//
//	Tick, Message, Join, Exited, ...  ─►  Machine  ─►  Ready: messages, events, a proposal
//	                                         ▲                              │
//	                                         └── Decided ◄── store ◄────────┘  compare and set
//
// # Who watches whom
//
// Each member has K observers, and observes K others on average. The members are
// on K rings, on each in the order of a hash of ring and id. A member's observers
// are the next ones on the rings. Such a graph is an expander: news that members
// pass on to their observers reaches n members in about log n / log K hops.
//
//	ring 0:  r2 ─► r0 ─► r3 ─► r1 ─►      r3 is watched by r1 (ring 0) and r2 (ring 1)
//	ring 1:  r3 ─► r2 ─► r1 ─► r0 ─►
//
// The graph follows from the member list, so nobody has to agree on it separately,
// and losing a member changes only the edges next to it. The alternatives:
//
//	all beat to all            n(n-1) messages an interval
//	a tree, or one observer    one busy rank; if the observer dies too, nobody notices
//	probing a random member    costs the same, but has no bound: the 99th percentile is 4.6 intervals
//	(SWIM, memberlist)         after the least
//
// Here the bound is 2 timeouts, whatever n is.
//
//	sent by a rank:     K / Interval messages a second, of about 10 bytes and 28 of UDP and IPv4
//	received by one:    the same on average; the busiest has the most in-edges, K + O(K) (measured: docs/reference/tables/membership.md)
//	silent to failed:   2 Timeout - U(0, Interval) + Interval/2 at most; to every rank one flood more
//
// # States
//
//	          1 timeout silent             2 timeouts silent, another observer agrees
//	healthy ───────────────────► suspect ─────────────────────────────► failed ──► gone with the next epoch
//	   ▲ ▲                          │                                      │
//	   │ └──────────────────────────┘ any sign of life, at any observer    │ refuted with a higher incarnation,
//	   └──────────────────────────────── recovering ◄──────────────────────┘ or joined again in a later epoch
//
// A sign of life is a beat, an answer to a ping, or another observer's word that it
// had one. After half a timeout of silence an observer asks for all three. One
// observer that still hears a member is enough to keep it.
//
// # Epochs
//
// An epoch is a number and a member list. The leader is one of the members, or a
// process outside. It collects failures, joins and leaves into a Proposal. The
// caller writes the proposal to the store, if the epoch there is still the one
// before. What the store holds afterwards comes back through Decided, and only
// such epochs are told to others. So two processes that both believe they lead
// cannot publish different lists under one number.
//
// # What runs it
//
//	run/elastic/internal/observe     the launchers of a job's hosts: a clock and datagrams; lists come from the coordinator's epochs
//	coord               the leader's half: workers' records in, epochs out; it observes nobody
//	run/internal/member/simulation   10,000 machines in virtual time
package member

import "time"

// Time is a point on a rank's own monotonic clock, counted from any origin.
// Times of two ranks are never compared; messages carry ages.
type Time = time.Duration

// ID names a member for good: a slot of the job, not its rank in an epoch.
type ID uint32

// Nobody is the id that no member has.
const Nobody ID = 1<<32 - 1

// State is what a rank holds of a member.
type State uint8

// The states of a member.
const (
	Healthy State = iota
	Suspect
	Failed
	Recovering
)

func (s State) String() string {
	return [...]string{"healthy", "suspect", "failed", "recovering"}[s&3]
}

// Reason says why members are asked to leave or a process is not let in.
type Reason uint8

// The reasons.
const (
	NoReason    Reason = iota
	TooFew             // fewer active members than Config.Min are left
	TooMany            // more than Config.MaxFailures failed within Config.Window
	Orphaned           // half of the members or more have failed as seen from here and no epoch follows
	CutOff             // nobody has been heard for Config.Orphan, the leader neither
	Full               // the job has Config.Max members
	Taken              // a living process has this id
	reasonCount        // how many there are
)

func (r Reason) String() string {
	return [...]string{"", "fewer than the least number of members", "too many failures at once", "most members are out of reach",
		"cut off from all members", "the job has all the members it may have", "the id is in use by another process"}[r%reasonCount]
}

// Kind says what an Event reports.
type Kind uint8

// The kinds of events.
const (
	Suspected    Kind = iota // ID has been silent for a timeout
	Died                     // ID has been silent for two, or its process was seen to exit
	Returned                 // ID was failed and refutes it, or joined again: recovering
	Recovered                // ID is healthy again
	EpochChanged             // Epoch is the one to work in; Event.Epoch.AfterStep says from which step
	Isolated                 // nobody is heard any more, the leader neither
	QuorumLost               // leave cleanly with a checkpoint; Reason says why
	Evicted                  // Epoch is without this process; it may Join again
	Refused                  // the leader does not let this process in; Reason says why
)

func (k Kind) String() string {
	return [...]string{"suspect", "failed", "recovering", "healthy", "epoch", "isolated", "quorum-lost", "evicted", "refused"}[k]
}

// Event is something that the shell acts on: the collective library aborts on
// Died, the trainer regroups on EpochChanged.
type Event struct {
	Kind   Kind
	ID     ID     // of whom
	Reason Reason // for QuorumLost and Refused
	Epoch  *Epoch // for EpochChanged and Evicted
}

// Outbound is a message and whom it is for. Messages may be lost, doubled,
// delayed and reordered on the way. A Whole, and a Turn of more than a hundred
// members, may be larger than a datagram and need a stream.
type Outbound struct {
	To      ID
	Message Message
}

// Proposal asks the store to replace the epoch numbered Prev by Next, and to
// leave it alone if that is no longer the one it holds. The answer is Decided with
// what the store holds afterwards; without one the proposal is made again.
type Proposal struct {
	Prev uint64
	Next *Epoch
}

// Ready is what came out of the inputs since the last Advance. Events are in the
// order in which they happened. The slices are the machine's own until Advance.
type Ready struct {
	Messages []Outbound
	Events   []Event
	Proposal *Proposal // nil if there is nothing to decide
	Read     bool      // a leader asks what the store holds; the answer is Decided, or nothing if it does not answer
}
