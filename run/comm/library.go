package comm

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/run/comm/choice"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/script"
	"github.com/weft-fabric/weft/run/comm/internal/shared"
)

// library finds the program of a call, and keeps what running it needs.
type library struct {
	world   *world
	group   *group.Group
	members []int // ranks of the endpoint
	levels  func() *levels
	failed  func() bool     // the communicator has, or another rank says so
	ctx     context.Context // of the call whose program is looked for; nil outside of calls
	choices *choice.Table
	known   map[key]*prepared
	forms   map[*sched.Program]*form
	tables  [][]byte     // of forms that this rank found for all
	recent  [8]*prepared // the last ones by collective
	judges  map[*choice.Made]*choice.Judge
}

// key is what the choice of a program depends on.
type key struct {
	op     sched.Collective
	blocks bool // of different lengths
	root   int
	bytes  int64
	want   want
}

// form is what is known of a program, whatever it is called for.
type form struct {
	digest uint64
	flat   *flat.Form // nil if it has none, or memory is not shared
}

// prepared is a program ready to run what it is called for.
type prepared struct {
	key     key
	program *sched.Program
	reason  string
	form
	layout chunks.Layout  // of the last operation
	inline *shared.Inline // for that layout, nil if it has no such form
	script script.Prepared
	given  bool          // by the caller or by a file, so that nothing is known of it but what is proven
	judge  *choice.Judge // of the program that was made for such calls, whether it runs or not; nil for none
	levels *leveled      // the phases that it is made of, nil where it runs as a whole
	proof  *verify.Report
	err    error // of the script
}

// table is the communicator's choices.
func (p *library) table() *choice.Table {
	if p.choices == nil {
		hosts := make([]int, len(p.members))
		for i, m := range p.members {
			hosts[i] = p.world.hosts[m]
		}
		p.choices = p.world.tables().For(hosts)
	}
	return p.choices
}

// made are the programs that were made for the links of these very ranks; nil for none.
func (p *library) made() *choice.Programs {
	if len(p.members) != len(p.world.hosts) {
		return nil
	}
	for i, m := range p.members {
		if i != m {
			return nil
		}
	}
	return p.world.made
}

// fitted is the program that was made for a call, nil if none was, if it is not proven or if links have changed. All ranks have the
// same ones.
func (p *library) fitted(r *request, k key) (*sched.Program, string, *choice.Judge) {
	if p.world.cfg.Canonical || k.want.messages || k.want.program != nil || r.Counts != nil {
		return nil, "", nil
	}
	program, m := p.made().For(r.Op, k.root, k.bytes)
	if program == nil {
		return nil, "", nil
	}
	judge := p.judges[m]
	if judge == nil {
		judge = choice.NewJudge(m)
		if p.judges == nil {
			p.judges = map[*choice.Made]*choice.Judge{}
		}
		p.judges[m] = judge
	}
	switch judge.State() {
	case choice.Dropped:
		return nil, "", nil
	case choice.Doubted:
		return nil, "", judge
	}
	if _, err := prove(program); err != nil {
		if p.world.cfg.Log != nil {
			p.world.cfg.Log.Warn("a kept program is not proven and does not run; make it anew: weft algo synth --measured", "operation", r.Op, "error", err)
		}
		return nil, "", nil
	}
	return program, fmt.Sprintf("made for these links: %s; %s instead of %s when it was made", m.Form, micros(m.Took), micros(m.Would)), judge
}

// forget makes calls choose anew that a program was made for.
func (p *library) forget(j *choice.Judge) {
	for k, x := range p.known {
		if x.judge == j {
			delete(p.known, k)
		}
	}
	clear(p.recent[:])
}

// pick chooses the program of a call. Blocks of different lengths cannot be passed on through scratch of one length, so those
// go straight to their ranks.
func (p *library) pick(r *request, bytes int64) (*sched.Program, string, error) {
	if r.Counts != nil {
		name := "direct"
		if r.Reduce != 0 {
			name = "rank-order"
		}
		a, err := algo.Find(name)
		if err != nil {
			return nil, "", err
		}
		p, err := a.Program(algo.Spec{Op: r.Op, Ranks: len(p.members), Root: max(r.Root, 0)})
		return p, "blocks of different lengths go straight to their ranks", err
	}
	k, err := p.table().Pick(r.Op, max(r.Root, 0), bytes, p.world.cfg.Canonical)
	if err != nil {
		return nil, "", err
	}
	return k.Program, k.Reason, nil
}

// find gives the program of a call.
func (p *library) find(r *request, want want) (*prepared, error) {
	k := key{r.Op, r.Counts != nil, max(r.Root, 0), p.bytes(r), want}
	if last := p.recent[r.Op&7]; last != nil && last.key == k {
		return last, nil
	}
	have := p.known[k]
	if have == nil {
		var err error
		if have, err = p.prepare(r, k); err != nil {
			return nil, err
		}
		if len(p.known) > 4096 {
			clear(p.known)
		}
		p.known[k] = have
	}
	p.recent[r.Op&7] = have
	return have, nil
}

// bytes is the size that the choice of a program depends on. Ranks must not differ in it.
func (p *library) bytes(r *request) int64 {
	bytes := int64(r.Count) * int64(r.Type.Size())
	switch {
	case r.Variant == calls.AllToAllV: // ranks differ in their lengths
		bytes = 0
	case r.Counts != nil:
		bytes = int64(total(r.Counts)) * int64(r.Type.Size())
	case r.Op.Blocks():
		bytes *= int64(len(p.members))
	}
	return bytes
}

// prepare makes the program of a call ready.
func (p *library) prepare(r *request, k key) (*prepared, error) {
	program, reason := k.want.program, "asked for by the caller"
	var levels *leveled
	fitted, why, judge := p.fitted(r, k)
	if fitted != nil {
		program, reason = fitted, why
	} else if l := p.levels(); program == nil && !k.want.messages && l != nil && l.serves(r) {
		var err error
		if levels, program, reason, err = l.choose(r.Op, k.root, k.bytes); err != nil {
			return nil, err
		}
		if whole, err := l.instead(r.Op, k.root, k.bytes, levels); err != nil {
			return nil, err
		} else if whole != nil {
			levels, program, reason = nil, whole.Program, whole.Reason
		}
	} else if program == nil {
		var err error
		if program, reason, err = p.pick(r, k.bytes); err != nil {
			return nil, err
		}
	} else if err := k.want.fits(r); err != nil {
		return nil, err
	} else if k.want.unproven {
		reason = "asked for by the caller; not proven"
	}
	f, err := p.formOf(program)
	if err != nil {
		return nil, err
	}
	made := &prepared{key: k, program: program, reason: reason, form: *f, levels: levels, given: program == k.want.program || fitted != nil, judge: judge}
	if k.want.messages {
		made.flat = nil
	}
	made.script = script.Prepared{Program: program, Message: p.table().Message(r.Op), Undivided: p.table().Undivided(r.Op), InPlace: made.inPlace, Straight: made.straight}
	if chunks.SpansBlocks(program) {
		made.script.Undivided = math.MaxInt
	}
	return made, nil
}

// formOf works out what is known of a program, whatever it is called for.
func (p *library) formOf(program *sched.Program) (*form, error) {
	if f := p.forms[program]; f != nil {
		return f, nil
	}
	if program.Ranks != len(p.members) {
		return nil, fmt.Errorf("program %s is for %d ranks, the communicator has %d", program.Name, program.Ranks, len(p.members))
	}
	if program.Switches > 0 {
		return nil, fmt.Errorf("program %s needs %d switches that compute, which no transport here has", program.Name, program.Switches)
	}
	raw, err := hex.DecodeString(program.Digest()[:16])
	if err != nil {
		return nil, fmt.Errorf("digest of %s: %w", program.Name, err)
	}
	f := &form{}
	for _, b := range raw {
		f.digest = f.digest<<8 | uint64(b)
	}
	if p.world.mem != nil {
		f.flat = p.flatOf(program, f.digest)
	}
	p.forms[program] = f
	return f, nil
}

// scriptOf gives the script of a rank, for a port whose channels hold depth messages, or any number if it is 0.
func (r *prepared) scriptOf(rank, depth int) (*script.Prepared, error) {
	if r.script.Script == nil && r.err == nil {
		r.script.Script, r.err = script.New(r.program, rank, depth)
	}
	return &r.script, r.err
}
