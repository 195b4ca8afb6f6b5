package comm

import (
	"fmt"
	"sync"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
)

// want is the program that a caller asks for, if it does.
type want struct {
	program  *sched.Program
	unproven bool // it may run without a proof
	messages bool // it is to run by messages even where ranks see one another's memory
}

// Using runs a given program rather than the one that would be chosen. All ranks
// must give the same. It must be right: the first call proves it, and an error says
// what is wrong with it. The proof is kept for the life of the process, by the
// program's digest.
func Using(p *Program) Option { return Option{want: want{program: p}} }

// Unproven is Using for a program that need not be proven. It may wait for ever, until
// the time limit, or compute something else than the collective promises.
func Unproven(p *Program) Option { return Option{want: want{program: p, unproven: true}} }

// ByMessages runs the call's program action by action, by messages, even where ranks
// see one another's memory.
func ByMessages() Option { return Option{want: want{messages: true}} }

// add joins what several options ask for.
func (w *want) add(o want) {
	if o.program != nil {
		w.program, w.unproven = o.program, o.unproven
	}
	w.messages = w.messages || o.messages
}

// proofs are those that were made in this process, by digest.
var proofs = struct {
	sync.Mutex
	known map[string]*proof
}{known: map[string]*proof{}}

// proof is what the proof of a program came to; both are nil if it has not been tried.
type proof struct {
	once   sync.Once
	report *verify.Report
	err    error
}

// maxProofs bounds the proofs that are kept, some 200 bytes each.
const maxProofs = 1 << 14

// prove proves a program, or says what came of it before.
func prove(p *sched.Program) (*verify.Report, error) {
	digest := p.Digest()
	proofs.Lock()
	known := proofs.known[digest]
	if known == nil {
		if len(proofs.known) >= maxProofs {
			clear(proofs.known)
		}
		known = &proof{}
		proofs.known[digest] = known
	}
	proofs.Unlock()
	known.once.Do(func() {
		if known.report, known.err = verify.Program(p); known.report != nil {
			known.report.Sent, known.report.Links = nil, nil // large, and not needed here
		}
	})
	return known.report, known.err
}

// fits says why the program that a caller asks for is not one for the call.
func (w *want) fits(r *request) error {
	switch p := w.program; {
	case p.Op != r.Op:
		return fmt.Errorf("program %s does %s, not %s", p.Name, p.Op, r.Op)
	case r.Op.Rooted() && p.Root != r.Root:
		return fmt.Errorf("program %s has root %d, not %d", p.Name, p.Root, r.Root)
	case r.Variant == calls.AllToAllV && p.Scratch != nil:
		return fmt.Errorf("program %s passes blocks on, but no rank knows the lengths of all blocks in an all-to-all-v; use direct or pairwise",
			p.Name)
	}
	return w.mayRun()
}

// mayRun proves the program that a caller asks for.
func (w *want) mayRun() error {
	if w.unproven {
		return w.program.Check()
	}
	if _, err := prove(w.program); err != nil {
		return fmt.Errorf("program %s is not proven and does not run: %w", w.program.Name, err)
	}
	return nil
}

// proven is the proof of a program; of one that is not proven it says nothing.
func (r *prepared) proven() *verify.Report {
	if r.proof == nil {
		r.proof = &verify.Report{}
		if !r.key.want.unproven {
			if rep, err := prove(r.program); err == nil {
				r.proof = rep
			}
		}
	}
	return r.proof
}

// inPlace reports whether in and out may be the same memory while the program runs. One
// that was chosen for many ranks is not proven for it, as that takes too long for a
// first call: it reads a copy.
func (r *prepared) inPlace() bool {
	return (r.given || r.program.Ranks <= provenRanks) && r.proven().InPlace
}

// provenRanks is how many ranks a program that was chosen may have for its first call
// in place to prove it: some ms.
const provenRanks = 32

// straight reports whether chunks may be moved as they are, though they differ in
// length: none is ever stored to one that may be shorter. Of programs without scratch
// that collective/algo makes its tests prove it.
func (r *prepared) straight(blocks bool) bool {
	if !r.given {
		return true
	}
	return r.proven().Aligned && (!blocks || r.proven().Placed)
}
