package msccl

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// maxBytes and maxRanks bound what Decode accepts; real files have up to a few
// thousand steps for each of up to a few hundred GPUs.
const (
	maxBytes = 256 << 20
	maxRanks = 1 << 14
	maxChunk = 1 << 24
)

// XML is an algorithm as its file has it.
type XML struct{ algo xmlAlgo }

// ReadXML reads an algorithm. Program says what it means, Write writes it again.
func ReadXML(r io.Reader) (*XML, error) {
	x := &XML{}
	if err := xml.NewDecoder(io.LimitReader(r, maxBytes)).Decode(&x.algo); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("MSCCL XML: no <algo> element")
		}
		return nil, fmt.Errorf("MSCCL XML: %w", err)
	}
	return x, nil
}

// Program gives the algorithm as a program. It may still be wrong: collective/verify says so. In and out are one memory where the file
// says inplace or a step writes to i; the program then starts with a copy.
func (x *XML) Program() (*sched.Program, error) {
	d := &decoder{a: &x.algo}
	if err := d.read(); err != nil {
		return nil, fmt.Errorf("MSCCL XML: algo %q: %w", x.algo.Name, err)
	}
	d.p.From = x
	return d.p, d.p.Check()
}

// Write writes the algorithm, with attributes in one order whatever they were read in.
func (x *XML) Write(w io.Writer) error { return writeXML(w, &x.algo) }

// Decode reads an algorithm as a program.
func Decode(r io.Reader) (*sched.Program, error) {
	x, err := ReadXML(r)
	if err != nil {
		return nil, err
	}
	return x.Program()
}

// block is a thread block on its way to a channel.
type block struct {
	xmlTB
	gpu     int
	parent  *block // of the set of blocks that share connections
	channel int
	done    []int // by step: actions of the channel once it is done
}

func (b *block) find() *block {
	for b.parent != b {
		b.parent = b.parent.parent
		b = b.parent
	}
	return b
}

type decoder struct {
	a      *xmlAlgo
	p      *sched.Program
	n      int
	in     int // chunks
	out    int
	tmp    int
	inside bool // in and out are one memory
	blocks [][]*block
}

func (x *decoder) read() error {
	if err := x.sizes(); err != nil {
		return err
	}
	if err := x.threads(); err != nil {
		return err
	}
	if err := x.color(); err != nil {
		return err
	}
	return x.write()
}

// sizes checks the header and the GPUs.
func (x *decoder) sizes() error {
	a := x.a
	op, err := collOf(a.Coll)
	if err != nil {
		return err
	}
	x.n = len(a.GPU)
	switch {
	case a.Name == "" || strings.ContainsAny(a.Name, " \t\r\n#"):
		return fmt.Errorf("the name must be one word")
	case x.n == 0:
		return fmt.Errorf("there are no GPUs")
	case x.n > maxRanks:
		return fmt.Errorf("%d GPUs; the limit is %d", x.n, maxRanks)
	case a.GPUs != 0 && a.GPUs != x.n:
		return fmt.Errorf("ngpus is %d, but there are %d", a.GPUs, x.n)
	case a.Root < 0 || a.Root >= x.n:
		return fmt.Errorf("root %d of %d GPUs", a.Root, x.n)
	}
	slices.SortFunc(a.GPU, func(p, q xmlGPU) int { return p.ID - q.ID })
	x.inside = a.InPlace != 0
	for i, g := range a.GPU {
		if g.ID != i {
			return fmt.Errorf("GPU %d is missing or there twice: ids must be 0 to %d", i, x.n-1)
		}
		if g.In < 0 || g.Out < 0 || g.Tmp < 0 || max(g.In, g.Out, g.Tmp) > maxChunk {
			return fmt.Errorf("gpu %d: i_chunks %d, o_chunks %d, s_chunks %d: want 0 to %d", i, g.In, g.Out, g.Tmp, maxChunk)
		}
		x.in, x.out, x.tmp = max(x.in, g.In), max(x.out, g.Out), max(x.tmp, g.Tmp)
	}
	chunks := max(x.in, x.out)
	p := &sched.Program{Name: a.Name, Op: op, Ranks: x.n, Root: a.Root, Chunks: sched.N(chunks), Slots: 2}
	if s, ok := slots[a.Proto]; ok {
		p.Slots = s
	}
	if chunks == 0 || op.Blocks() && chunks%x.n != 0 {
		return fmt.Errorf("%d chunks for %d GPUs", chunks, x.n)
	}
	x.p = p
	if want := p.NumChunks(sched.In); x.in != want && x.in != 0 {
		return fmt.Errorf("i_chunks is %d; %s with %d chunks has %d", x.in, a.Coll, chunks, want)
	}
	if want := p.NumChunks(sched.Out); x.out != want && x.out != 0 {
		return fmt.Errorf("o_chunks is %d; %s with %d chunks has %d", x.out, a.Coll, chunks, want)
	}
	return nil
}

// threads checks thread blocks and steps and joins those with a common connection.
func (x *decoder) threads() error {
	type way struct{ from, to, channel int }
	senders, receivers := map[way]*block{}, map[way]*block{}
	for g := range x.a.GPU {
		var list []*block
		for i, tb := range x.a.GPU[g].TB {
			b := &block{xmlTB: tb, gpu: g}
			b.parent = b
			if tb.ID != i {
				return fmt.Errorf("gpu %d: thread block %d comes where %d should", g, tb.ID, i)
			}
			for _, peer := range []int{tb.Send, tb.Recv} {
				if peer < -1 || peer >= x.n || peer == g {
					return fmt.Errorf("gpu %d tb %d: peer %d; want another GPU of 0 to %d, or -1", g, i, peer, x.n-1)
				}
			}
			for k, s := range tb.Step {
				if s.S != k {
					return fmt.Errorf("gpu %d tb %d: step %d comes where %d should", g, i, s.S, k)
				}
				if err := x.step(g, &b.xmlTB, s); err != nil {
					return fmt.Errorf("gpu %d tb %d step %d (%s): %w", g, i, k, s.Type, err)
				}
			}
			for _, end := range []struct {
				peer int
				at   way
				of   map[way]*block
				verb string
			}{{tb.Send, way{g, tb.Send, tb.Chan}, senders, "send to"}, {tb.Recv, way{tb.Recv, g, tb.Chan}, receivers, "receive from"}} {
				if end.peer < 0 {
					continue
				}
				if other := end.of[end.at]; other != nil {
					return fmt.Errorf("gpu %d: thread blocks %d and %d both %s %d on channel %d", g, other.ID, i, end.verb, end.peer, tb.Chan)
				}
				end.of[end.at] = b
			}
			list = append(list, b)
		}
		x.blocks = append(x.blocks, list)
	}
	for _, list := range x.blocks {
		for _, b := range list {
			if b.Send >= 0 {
				if other := receivers[way{b.gpu, b.Send, b.Chan}]; other != nil {
					b.find().parent = other.find()
				}
			}
		}
	}
	return nil
}

// step checks what can be checked of a step alone.
func (x *decoder) step(g int, tb *xmlTB, s xmlStep) error {
	op, err := opOf(s.Type)
	if err != nil {
		return err
	}
	if s.DepTB >= 0 {
		tbs := x.a.GPU[g].TB
		if s.DepTB >= len(tbs) || s.DepOn < 0 || s.DepOn >= len(tbs[s.DepTB].Step) {
			return fmt.Errorf("depends on thread block %d step %d, which does not exist", s.DepTB, s.DepOn)
		}
		if s.DepTB == tb.ID && s.DepOn >= s.S {
			return fmt.Errorf("depends on step %d of its own thread block, which comes no earlier", s.DepOn)
		}
	}
	if op == sched.Wait {
		return nil
	}
	if op.Sends() && tb.Send < 0 {
		return fmt.Errorf("the thread block sends to nobody")
	}
	if op.Receives() && tb.Recv < 0 {
		return fmt.Errorf("the thread block receives from nobody")
	}
	if s.Count < 1 || s.Count > maxChunk {
		return fmt.Errorf("cnt %d; want at least 1", s.Count)
	}
	check := func(letter string, off int) error {
		b, err := bufferOf(letter)
		if err != nil {
			return err
		}
		size := map[sched.Buffer]int{sched.In: x.p.NumChunks(sched.In), sched.Out: x.p.NumChunks(sched.Out), sched.Tmp: x.tmp}[b]
		if off < 0 || off+s.Count > size {
			return fmt.Errorf("%s[%d +: %d] is outside the %d chunks there are", letter, off, s.Count, size)
		}
		return nil
	}
	if op.Reads() {
		if err := check(s.SrcBuf, s.SrcOff); err != nil {
			return err
		}
	}
	if op.Stores() {
		if err := check(s.DstBuf, s.DstOff); err != nil {
			return err
		}
		x.inside = x.inside || s.DstBuf == "i"
	}
	return nil
}

// sets gives the sets of connected thread blocks, in the order of their first ones.
func (x *decoder) sets() (sets [][]*block, err error) {
	index := map[*block]int{}
	for _, list := range x.blocks {
		for _, b := range list {
			i, known := index[b.find()]
			if !known {
				i = len(sets)
				index[b.find()] = i
				sets = append(sets, nil)
			}
			for _, other := range sets[i] {
				if other.gpu == b.gpu {
					return nil, fmt.Errorf("gpu %d: thread blocks %d and %d hang together through thread blocks of their peers; "+
						"a program runs such a set as one channel, which has one thread a rank",
						b.gpu, other.ID, b.ID)
				}
			}
			sets[i] = append(sets[i], b)
		}
	}
	return sets, nil
}

// color gives every set of connected thread blocks a channel that no other set
// with a GPU in common has.
func (x *decoder) color() error {
	sets, err := x.sets()
	if err != nil {
		return err
	}
	first := 0
	if x.inside {
		first = 1 // channel 0 makes in and out one memory
	}
	used := make([]map[int]bool, x.n)
	channels := first
	for _, set := range sets {
		c := first
		taken := func(c int) bool {
			return slices.ContainsFunc(set, func(b *block) bool { return used[b.gpu][c] })
		}
		for taken(c) {
			c++
		}
		for _, b := range set {
			if used[b.gpu] == nil {
				used[b.gpu] = map[int]bool{}
			}
			used[b.gpu][c], b.channel = true, c
		}
		channels = max(channels, c+1)
	}
	x.p.Groups = make([]sched.Group, max(channels, 1))
	return nil
}

// countActions notes how many actions of the program a thread block has done after each of its steps, which is what
// others wait for. A wait is an action, and where in and out are one memory, so is the one for the copy.
func (b *block) countActions(inside bool) {
	actions := 0
	if inside {
		actions++
	}
	for _, s := range b.Step {
		if s.DepTB >= 0 && s.DepTB != b.ID {
			actions++
		}
		if s.Type != "nop" {
			actions++
		}
		b.done = append(b.done, actions)
	}
}

// scratch is how many chunks of it are needed. In-place programs whose input is larger than the output work on a copy.
func (x *decoder) scratch() int {
	if x.inside && x.shrinks() {
		return x.tmp + x.p.NumChunks(sched.In)
	}
	return x.tmp
}

// write makes the program's text: for every channel, what each rank does.
func (x *decoder) write() error {
	if tmp := x.scratch(); tmp > 0 {
		x.p.Scratch = sched.N(tmp)
	}
	for _, list := range x.blocks {
		for _, b := range list {
			b.countActions(x.inside)
		}
	}
	r := &sched.Expr{Kind: sched.Var, Name: "r"}
	rank := func(c, g int, body []sched.Stmt) {
		if len(body) > 0 {
			cond := &sched.Expr{Kind: sched.Eq, L: r, R: sched.N(g)}
			x.p.Groups[c].Body = append(x.p.Groups[c].Body, sched.Stmt{If: &sched.If{Cond: cond, Then: body}})
		}
	}
	for c := range x.p.Groups {
		x.p.Groups[c].Count = 1
	}
	for g, list := range x.blocks {
		if x.inside {
			rank(0, g, x.frame(g, list))
		}
		for _, b := range list {
			rank(b.channel, g, x.body(g, list, b))
		}
	}
	return nil
}

// shrinks reports whether out is smaller than in, so that the one memory is
// scratch of the size of in.
func (x *decoder) shrinks() bool {
	return x.p.NumChunks(sched.Out) < x.p.NumChunks(sched.In)
}

// at says where chunks of a buffer lie.
func (x *decoder) at(g int, letter string, off, count int) sched.Ref {
	buf, _ := bufferOf(letter) // checked before
	if x.inside && buf != sched.Tmp {
		per := max(x.p.NumChunks(sched.In), x.p.NumChunks(sched.Out)) / x.n
		switch {
		case x.shrinks():
			if buf == sched.Out {
				off += g * per
			}
			buf, off = sched.Tmp, off+x.tmp
		case buf == sched.In && x.p.NumChunks(sched.In) < x.p.NumChunks(sched.Out):
			buf, off = sched.Out, off+g*per
		default:
			buf = sched.Out
		}
	}
	ref := sched.Ref{Buf: buf, Index: sched.N(off)}
	if count > 1 {
		ref.Count = sched.N(count)
	}
	return ref
}

// frame copies in to the one memory before anybody looks, and out of it in the end.
func (x *decoder) frame(g int, list []*block) []sched.Stmt {
	chunks := x.p.NumChunks(sched.In)
	in := sched.Ref{Buf: sched.In, Index: sched.N(0)}
	if chunks > 1 {
		in.Count = sched.N(chunks)
	}
	body := []sched.Stmt{{Step: &sched.Step{Op: sched.Copy, Src: in, Dst: x.at(g, "i", 0, chunks)}}}
	if !x.shrinks() {
		return body
	}
	for _, b := range list {
		if len(b.done) > 0 {
			body = append(body, wait(b.channel, b.done[len(b.done)-1]))
		}
	}
	chunks = x.p.NumChunks(sched.Out)
	out := sched.Ref{Buf: sched.Out, Index: sched.N(0)}
	if chunks > 1 {
		out.Count = sched.N(chunks)
	}
	return append(body, sched.Stmt{Step: &sched.Step{Op: sched.Copy, Src: x.at(g, "o", 0, chunks), Dst: out}})
}

func wait(channel, done int) sched.Stmt {
	return sched.Stmt{Step: &sched.Step{Op: sched.Wait, Channel: sched.N(channel), Done: sched.N(done)}}
}

// body turns a thread block into statements. A dependency on another block becomes a wait for that block's channel; one
// on itself holds anyway.
func (x *decoder) body(g int, list []*block, b *block) []sched.Stmt {
	var body []sched.Stmt
	if x.inside && len(b.Step) > 0 {
		body = append(body, wait(0, 1))
	}
	for _, s := range b.Step {
		if s.DepTB >= 0 && s.DepTB != b.ID {
			on := list[s.DepTB]
			body = append(body, wait(on.channel, on.done[s.DepOn]))
		}
		op, _ := opOf(s.Type) // checked before
		if op == sched.Wait {
			continue
		}
		body = append(body, sched.Stmt{Step: x.operands(op, g, b, &s)})
	}
	return body
}

func (x *decoder) operands(op sched.Op, g int, b *block, s *xmlStep) *sched.Step {
	st := &sched.Step{Op: op}
	if op.Reads() {
		st.Src = x.at(g, s.SrcBuf, s.SrcOff, s.Count)
	}
	if op.Stores() {
		st.Dst = x.at(g, s.DstBuf, s.DstOff, s.Count)
	}
	if op.Receives() {
		st.From = sched.N(b.Recv)
	}
	if op.Sends() {
		st.To = sched.N(b.Send)
	}
	return st
}

// Read reads a program in any of its forms, which its first character tells apart: MSCCL's XML, MSCCL++'s JSON, or text.
func Read(data []byte) (*sched.Program, error) {
	switch text := bytes.TrimLeft(data, "\ufeff \t\r\n"); {
	case bytes.HasPrefix(text, []byte("<")):
		return Decode(bytes.NewReader(data))
	case bytes.HasPrefix(text, []byte("{")):
		return DecodePlan(bytes.NewReader(text))
	}
	return sched.Parse(string(data))
}
