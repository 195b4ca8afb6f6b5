package blame

import "time"

// Answer is what a wait does about a rank that is gone.
type Answer uint8

// The answers.
const (
	GoOn    Answer = iota // the wait does not need it, or not yet
	Inherit               // this rank is the heir: it does what the other left undone
	Fail                  // the wait can never end: the rank is at fault
)

// Absence is a rank that is gone, seen from a wait.
type Absence struct {
	Phase  Phase
	Shared bool // ranks see one another's memory, and so its board
	Done   bool // it did what the phase needs of it

	Died    bool // it ended without leaving: its connection broke or its process is gone
	Closed  bool // it only closed the communicator; its process lives
	Awaited bool // Exit: this rank waits for it; Messages: this rank's message is to or from it

	Heirs bool // Exit: its sums are wanted, so its heir must do them
	Heir  bool // Exit: this rank is the heir

	Missing time.Duration // Messages: since when a rank is seen to be gone
}

const (
	// DiedFor is how long messages of a rank that died may suffice: its death is to be noticed within 50 ms.
	DiedFor = 15 * time.Millisecond
	// ClosedFor is how long messages of a rank that closed the communicator may be on their way.
	ClosedFor = time.Second
)

// Ask decides whether a wait still needs a rank that is gone.
func Ask(a *Absence) Answer {
	switch {
	case a.Shared && a.Done:
		return GoOn
	case a.Phase == Exit && a.Shared:
		return a.exit()
	case a.Phase == Messages:
		return a.messages()
	}
	return Fail
}

// exit: a rank that closed the communicator did so before it was done here. One that died is replaced by its heir.
func (a *Absence) exit() Answer {
	switch {
	case a.Closed && a.Awaited:
		return Fail
	case !a.Closed && (!a.Heirs || a.Heir):
		return Inherit
	}
	return GoOn // its heir will do the rest, or nobody waits for it
}

// messages: a rank that is gone may have sent all that it had to. If it left, the port tells those that wait for its messages.
// If it died, it may have done so after its last operation: the port tells those that wait for it, and they tell the others.
// So after a moment it is at fault only if some rank has not come yet, and then it has died.
func (a *Absence) messages() Answer {
	switch {
	case !a.Died && !a.Closed:
		return GoOn
	case a.Shared: // its board would say that it is done
		return Fail
	case a.Closed && (!a.Awaited || a.Missing < ClosedFor), !a.Closed && a.Missing < DiedFor:
		return GoOn
	}
	return Fail
}
