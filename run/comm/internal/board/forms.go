package board

import (
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Form is a line about the form of a program: one rank of the communicator finds it, and the others read what it found.
type Form []byte

// The words of such a line.
const (
	formDigest = 0  // of the program
	formFinder = 8  // the rank that finds it, and 1
	formWhere  = 16 // where it is in that rank's memory
	formLength = 24 // of it; 0 while it is not there
)

// Lengths that are none.
const (
	noForm  = 1 // the program has no form
	notKept = 2 // it could not be kept for the others
)

// FormOf gives the line of a program, and whether the caller is to find its form: it has made the line. It is nil if there is no
// room for a line.
func (b Board) FormOf(digest uint64, rank int) (line Form, mine bool) {
	for i := range formSlots {
		line = Form(b[atForms+i*formSize:][:formSize])
		at := atomicAt(line, formDigest)
		if at.Load() == 0 && at.CompareAndSwap(0, digest) {
			atomicAt(line, formFinder).Store(uint64(rank) + 1)
			return line, true
		}
		if at.Load() == digest {
			return line, false
		}
	}
	return nil, false
}

// Found says where the form is; of no bytes that the program has none.
func (f Form) Found(at transport.Handle, n int) {
	wait.Release(atomicAt(f, formWhere), uint64(at))
	atomicAt(f, formLength).Store(uint64(max(n, noForm)))
}

// GiveUp says that the others must find the form themselves.
func (f Form) GiveUp() { atomicAt(f, formLength).Store(notKept) }

// GivenUp is what GiveUp said.
func (f Form) GivenUp() bool { return atomicAt(f, formLength).Load() == notKept }

// Where is what Found said, once it did: there are no bytes if the program has no form.
func (f Form) Where() (at transport.Handle, n int, done bool) {
	switch n = int(atomicAt(f, formLength).Load()); n {
	case noForm:
		return 0, 0, true
	case notKept:
		return 0, 0, false
	}
	return transport.Handle(atomicAt(f, formWhere).Load()), n, n > 0
}

// Finder is the rank that looks for the form; -1 if it has not said so yet.
func (f Form) Finder() int { return int(atomicAt(f, formFinder).Load()) - 1 }
