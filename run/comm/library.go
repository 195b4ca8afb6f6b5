package comm

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"math/bits"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/unit"
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
	known   cache
	blocks  map[blocks]*sched.Program
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
	ragged bool // over hosts: the ranks' parts of the buffer differ in length
	want   want
}

// form is what is known of a program, whatever it is called for.
type form struct {
	digest uint64
	flat   *flat.Form // nil if it has none, or memory is not shared
	own    *own
}

// own is what this rank does in a program: long, and the same for all sizes.
type own struct {
	script *script.Script // nil before it is asked for
	err    error
}

// blocks is what the program of a call with blocks of different lengths depends on.
type blocks struct {
	op   sched.Collective
	root int
	sums bool
}

// cache has what was prepared for the calls of late, in two generations: when the younger is full, the older is forgotten. So it
// knows at least the last cacheSize different calls, and at most twice as many.
type cache struct{ young, old map[key]*prepared }

// cacheSize bounds a generation. With four ranks a full cache takes 0.4 MB, on two hosts 1.5 MB (2026-11-18).
const cacheSize = 512

func (c *cache) get(k key) *prepared {
	p := c.young[k]
	if p == nil {
		if p = c.old[k]; p != nil {
			c.put(p)
		}
	}
	return p
}

func (c *cache) put(p *prepared) {
	if len(c.young) >= cacheSize {
		c.young, c.old = nil, c.young
	}
	if c.young == nil {
		c.young = map[key]*prepared{}
	}
	c.young[p.key] = p
}

func (c *cache) drop(which func(*prepared) bool) {
	for _, m := range []map[key]*prepared{c.young, c.old} {
		maps.DeleteFunc(m, func(_ key, p *prepared) bool { return which(p) })
	}
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
			p.world.cfg.Log.Warn("a kept program is not proven and does not run; make it anew: weft algo synth --measured",
				"operation", r.Op, "error", err)
		}
		return nil, "", nil
	}
	return program, fmt.Sprintf("made for these links: %s; %s instead of %s when it was made", m.Form, micros(m.Took), micros(m.Would)), judge
}

// forget makes calls choose anew that a program was made for.
func (p *library) forget(j *choice.Judge) {
	p.known.drop(func(x *prepared) bool { return x.judge == j })
	clear(p.recent[:])
}

// pick chooses the program of a call. Blocks of different lengths cannot be passed on through scratch of one length, so those
// go straight to their ranks.
func (p *library) pick(r *request, bytes int64) (*sched.Program, string, error) {
	if r.Counts != nil {
		program, err := p.straightFor(r)
		return program, "blocks of different lengths go straight to their ranks", err
	}
	k, err := p.table().Pick(r.Op, max(r.Root, 0), bytes, p.world.cfg.Canonical)
	if err != nil {
		return nil, "", err
	}
	return k.Program, k.Reason, nil
}

// straight is the program in which blocks go straight to their ranks, and its name.
func straight(op sched.Collective, ranks, root int, sums bool) (*sched.Program, string, error) {
	name := "direct"
	if sums {
		name = "rank-order"
	}
	a, err := algo.Find(name)
	if err != nil {
		return nil, "", err
	}
	program, err := a.Program(algo.Spec{Op: op, Ranks: ranks, Root: root})
	return program, name, err
}

// straightFor is the program of a call with blocks of different lengths, built once.
func (p *library) straightFor(r *request) (*sched.Program, error) {
	k := blocks{r.Op, max(r.Root, 0), r.Reduce != 0}
	if program := p.blocks[k]; program != nil {
		return program, nil
	}
	program, _, err := straight(k.op, len(p.members), k.root, k.sums)
	if err != nil {
		return nil, err
	}
	if p.blocks == nil {
		p.blocks = map[blocks]*sched.Program{}
	}
	p.blocks[k] = program
	return program, nil
}

// find gives the program of a call.
func (p *library) find(r *request, want want) (*prepared, error) {
	k := key{r.Op, r.Counts != nil, max(r.Root, 0), sizeClass(p.bytes(r)), p.levels().ragged(r), want}
	if last := p.recent[r.Op&7]; last != nil && last.key == k {
		return last, nil
	}
	have := p.known.get(k)
	if have == nil {
		var err error
		if have, err = p.prepare(r, k); err != nil {
			return nil, err
		}
		p.known.put(have)
	}
	p.recent[r.Op&7] = have
	return have, nil
}

// sizeClass is the size for which the program of a call is chosen and made ready: the next of sixteen steps from one power of two to the
// next. A program is bound to the size itself by each call, which is cheap, so calls of a size that was never seen cost no more than
// others. Choices differ little within a step of a sixteenth.
func sizeClass(bytes int64) int64 {
	step := int64(1) << max(bits.Len64(uint64(max(bytes, 1)-1))-5, 0)
	return (bytes + step - 1) / step * step
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
		if levels, program, reason, err = l.choose(r.Op, k.root, k.bytes, k.ragged); err != nil {
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
	made := &prepared{key: k, program: program, reason: reason, form: *f, levels: levels, given: program == k.want.program ||
		fitted != nil, judge: judge}
	if k.want.messages {
		made.flat = nil
	}
	made.script = script.Prepared{Program: program, Message: p.table().Message(r.Op), Undivided: p.table().Undivided(r.Op),
		InPlace: made.inPlace, Straight: made.straight}
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
	f := &form{own: &own{}}
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
	if r.own.script == nil && r.own.err == nil {
		r.own.script, r.own.err = script.New(r.program, rank, depth)
	}
	r.script.Script = r.own.script
	return &r.script, r.own.err
}

func micros(us float64) unit.Time { return unit.Time(us * float64(unit.Microsecond)) }
