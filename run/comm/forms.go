package comm

import (
	"runtime/debug"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// The flat form of a program says what all ranks do, so finding it takes as long as all of their steps, and each rank would do
// it. Where it is large one rank finds it for all: the first that needs it writes its name into a line of the first rank's board
// and the form into its own memory. The others wait for it; if it does not come, they find the form themselves.

const (
	sharedForm = 32               // ranks from which on a form is shared: one of 32 ranks is found in 2 ms
	formWait   = 10 * time.Second // at most, and no longer than the time limit: a form of 256 ranks takes 0.4 s of a core
)

// flatOf finds the flat form of a program, nil if it has none.
func (p *library) flatOf(program *sched.Program, digest uint64) *flat.Form {
	if program.Ranks >= sharedForm && !program.Op.Rooted() { // those with a root have few steps, and there are as many of them as roots
		line, mine := p.group.Boards[0].FormOf(digest, p.group.Rank)
		switch {
		case mine:
			return p.findForAll(program, line)
		case line != nil:
			if at, n, ok := p.awaitForm(line); ok {
				if f, err := p.readForm(line.Finder(), at, n); err == nil {
					return f
				}
			} else if p.over() { // the call will not be made
				return nil
			}
		}
	}
	f, err := flat.New(program)
	if err != nil {
		return nil
	}
	return f
}

// awaitForm waits until a form is there, unless its finder dies or takes too long, or the call ends. The pauses grow with the time:
// hundreds of ranks that look often leave the finder no core.
func (p *library) awaitForm(line board.Form) (at transport.Handle, n int, ok bool) {
	began := time.Now()
	for {
		if at, n, ok = line.Where(); ok {
			return at, n, true
		}
		took := time.Since(began)
		if finder := line.Finder(); line.GivenUp() || p.over() || finder >= 0 && p.group.Alive(finder) != nil ||
			took > min(formWait, p.world.cfg.Timeout) {
			return 0, 0, false
		}
		wait.Nap(min(max(took/4, 50*time.Microsecond), 100*time.Millisecond))
	}
}

// over reports whether the call whose program is looked for has ended, or the communicator.
func (p *library) over() bool { return p.failed() || p.ctx != nil && p.ctx.Err() != nil }

// findForAll finds a form and writes it down for the others.
func (p *library) findForAll(program *sched.Program, line board.Form) *flat.Form {
	f, err := flat.New(program)
	if err != nil {
		line.Found(0, 0)
		return nil
	}
	table := f.Table()
	b, err := p.group.Endpoint.Verbs().Alloc(len(table))
	if err != nil {
		line.GiveUp()
		return f
	}
	copy(b, table)
	p.tables = append(p.tables, b)
	at, _ := p.group.Memory.Handle(b)
	line.Found(at, len(b))
	if shared, err := flat.FromTable(b); err == nil {
		f = shared
	}
	debug.FreeOSMemory() // the form of 256 ranks takes 100 times what it leaves
	return f
}

// readForm reads a form that a rank has written down; nil if the program has none. It fails where the rank died before its memory
// was mapped here.
func (p *library) readForm(finder int, at transport.Handle, n int) (*flat.Form, error) {
	if n == 0 {
		return nil, nil
	}
	b, err := p.group.At(finder, at, n)
	if err != nil {
		return nil, err
	}
	return flat.FromTable(b)
}
