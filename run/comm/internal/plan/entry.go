package plan

// Entry is what a rank tells the others when it enters an operation: how its input is given, and some flags. It is a word of
// the rank's entry line on the board.
type Entry uint64

// How an input is given.
const (
	Nowhere Entry = iota // nobody reads it
	InEntry              // in the entry line
	InSmall              // in the board
	Staged               // copied to where the handle says
	Lent                 // the user's buffer, which all ranks see
	Pulled               // the user's buffer, at an address of its process
	InSlots              // by pieces, through slots where the handle says

	inputMask Entry = 0xff
)

// The flags of an entry.
const (
	OutSeen  Entry = 1 << (8 + iota) // the others can store to the output, at the second handle
	Overlaid                         // in and out share memory
	Once                             // every operation uses this stage, not every other
	Growing                          // the stage is being filled, piece by piece
	Pooled                           // of the root: if nobody can store to its output, every rank leaves its share where the root sees it
)

// Input is how the input is given, without the flags.
func (e Entry) Input() Entry { return e & inputMask }

// Borrowed reports whether the input is read where it lies, or in a stage that the next operation uses again: then its owner
// must not leave before its readers are done.
func (e Entry) Borrowed() bool {
	in := e.Input()
	return in == Lent || in == Pulled || e&Once != 0
}

// Entries sums up the entries of all ranks, the own one included.
type Entries struct {
	Hidden   bool // some rank's input or output is not seen by the others
	Overlaid bool // some rank's in and out share memory
	Borrowed bool // some other rank's input is borrowed
	Slots    int  // ranks that give their input by pieces
	Lent     int  // ranks whose buffers all ranks see
}

// Add takes in an entry.
func (a *Entries) Add(e Entry, own bool) {
	switch e.Input() {
	case InSlots:
		a.Slots++
	case Lent:
		a.Lent++
	}
	if in := e.Input(); in != Lent && in != Nowhere || e&OutSeen == 0 {
		a.Hidden = true
	}
	a.Overlaid = a.Overlaid || e&Overlaid != 0
	a.Borrowed = a.Borrowed || !own && e.Borrowed()
}
