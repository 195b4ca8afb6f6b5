package sched

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of what Parse accepts, so that no text asks for more work than a
// machine has. They are far above any real program.
const (
	maxText     = 32 << 20
	maxRanks    = 1 << 24
	maxChannels = 1 << 12
)

// String prints the program in its text form, which Parse reads back.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "weft 1\nname %s\nop %s\nranks %d\n", p.Name, p.Op, p.Ranks)
	if p.Switches > 0 {
		fmt.Fprintf(&b, "switches %d\n", p.Switches)
	}
	if p.Root > 0 {
		fmt.Fprintf(&b, "root %d\n", p.Root)
	}
	for _, l := range p.Lets {
		fmt.Fprintf(&b, "let %s = %d\n", l.Name, l.Value)
	}
	for _, t := range p.Tables {
		fmt.Fprintf(&b, "table %s:", t.Name)
		printNumbers(&b, t.Values)
	}
	fmt.Fprintf(&b, "chunks %s\n", p.Chunks)
	if p.Scratch != nil {
		fmt.Fprintf(&b, "scratch %s\n", p.Scratch)
	}
	fmt.Fprintf(&b, "slots %d\n", p.Slots)
	for c, order := range p.Orders {
		if order != nil {
			fmt.Fprintf(&b, "order %d:", c)
			printNumbers(&b, order)
		}
	}
	for _, g := range p.Groups {
		fmt.Fprintf(&b, "channels %d:\n", g.Count)
		printStmts(&b, g.Body, 1)
	}
	return b.String()
}

// printNumbers ends a line with a list. Tables may have millions of numbers, which Fprintf would make slow.
func printNumbers[T ~int32 | ~int64](b *strings.Builder, list []T) {
	for _, v := range list {
		b.WriteByte(' ')
		b.WriteString(strconv.FormatInt(int64(v), 10))
	}
	b.WriteByte('\n')
}

func printStmts(b *strings.Builder, body []Stmt, depth int) {
	in := strings.Repeat("  ", depth)
	for _, s := range body {
		switch {
		case s.Step != nil:
			fmt.Fprintf(b, "%s%s\n", in, s.Step)
		case s.Loop != nil:
			fmt.Fprintf(b, "%s%s:\n", in, s.Loop)
			printStmts(b, s.Loop.Body, depth+1)
		case s.If != nil:
			fmt.Fprintf(b, "%sif %s:\n", in, s.If.Cond)
			printStmts(b, s.If.Then, depth+1)
			if len(s.If.Else) > 0 {
				fmt.Fprintf(b, "%selse:\n", in)
				printStmts(b, s.If.Else, depth+1)
			}
		}
	}
}

// String prints the head of a loop.
func (l *Loop) String() string { return fmt.Sprintf("repeat %s < %s", l.Var, l.Count) }

// String prints a step as one line of text.
func (s *Step) String() string {
	if s.Op == Wait {
		return fmt.Sprintf("wait channel %s done %s", s.Channel, s.Done)
	}
	text := s.Op.String()
	if s.Op.Reads() {
		text += " " + s.Src.String()
	}
	if s.Op.Stores() {
		text += " -> " + s.Dst.String()
	}
	if s.Op.Receives() {
		text += " from " + s.From.String()
	}
	if s.Op.Sends() {
		text += " to " + s.To.String()
	}
	return text
}

func (r Ref) String() string {
	if r.Count == nil {
		return fmt.Sprintf("%s[%s]", r.Buf, r.Index)
	}
	return fmt.Sprintf("%s[%s +: %s]", r.Buf, r.Index, r.Count)
}

// Parse reads the text form. Errors name the line and what is known there.
func Parse(text string) (*Program, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("program text of %d bytes; the limit is %d", len(text), maxText)
	}
	p := &parser{prog: &Program{Slots: 1}, scope: &scope{names: []string{"r", "n", "c"}}}
	for i, line := range strings.Split(text, "\n") {
		if j := strings.IndexByte(line, '#'); j >= 0 {
			line = line[:j]
		}
		body := strings.TrimRight(strings.TrimLeft(line, " "), " \r\t")
		if body == "" {
			continue
		}
		p.lines = append(p.lines, textLine{i + 1, len(line) - len(strings.TrimLeft(line, " ")), body})
	}
	if err := p.program(); err != nil {
		line := 0
		if len(p.lines) > 0 {
			line = p.lines[min(p.at, len(p.lines)-1)].number
		}
		return nil, fmt.Errorf("line %d: %w", line, err)
	}
	return p.prog, p.prog.Check()
}

type textLine struct {
	number, indent int
	text           string
}

type parser struct {
	prog  *Program
	scope *scope
	lines []textLine
	at    int
}

// program reads the whole text. Everything outside channels is a line of its own.
func (p *parser) program() error {
	if len(p.lines) == 0 || p.lines[0].text != "weft 1" {
		return fmt.Errorf("a program starts with %q", "weft 1")
	}
	for p.at = 1; p.at < len(p.lines); p.at++ {
		l := p.lines[p.at]
		word, rest, _ := strings.Cut(l.text, " ")
		if l.indent != 0 {
			return fmt.Errorf("%q is indented but belongs to nothing", l.text)
		}
		if word == "channels" {
			if err := p.group(rest); err != nil {
				return err
			}
			continue
		}
		if err := p.header(word, rest); err != nil {
			return err
		}
	}
	return nil
}

// header reads a line above the first channels.
func (p *parser) header(word, rest string) (err error) {
	g := p.prog
	if len(g.Groups) > 0 {
		return fmt.Errorf("%q must stand before the first channels", word)
	}
	switch word {
	case "name":
		if strings.ContainsAny(rest, " \t") || rest == "" {
			return fmt.Errorf("name %q must be one word", rest)
		}
		g.Name = rest
	case "op":
		g.Op, err = ParseCollective(rest)
	case "ranks":
		g.Ranks, err = number(word, rest, 1, maxRanks)
	case "switches":
		g.Switches, err = number(word, rest, 0, maxRanks)
	case "root":
		g.Root, err = number(word, rest, 0, maxRanks)
	case "slots":
		g.Slots, err = number(word, rest, 1, 1<<20)
	case "chunks":
		g.Chunks, err = p.whole(rest)
	case "scratch":
		g.Scratch, err = p.whole(rest)
	case "let":
		name, value, ok := strings.Cut(rest, " = ")
		if !ok || !plainName(name) {
			return fmt.Errorf("want let NAME = NUMBER, got %q", rest)
		}
		if _, taken := p.scope.find(name); taken || p.prog.hasTable(name) {
			return fmt.Errorf("name %q is taken", name)
		}
		v, err := number(word, value, 0, 1<<40)
		if err != nil {
			return err
		}
		if err := p.declare(name); err != nil {
			return err
		}
		g.Lets = append(g.Lets, Let{name, int64(v)})
	case "table":
		return p.table(rest)
	case "order":
		return p.order(rest)
	default:
		return fmt.Errorf("unknown word %q; known: name, op, ranks, switches, root, let, table, chunks, scratch, slots, order, channels", word)
	}
	return err
}

func plainName(s string) bool {
	for i := range len(s) {
		if !wordByte(s[i]) {
			return false
		}
	}
	return s != "" && (s[0] < '0' || s[0] > '9')
}

func number(what, s string, low, high int) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil || v < low || v > high {
		return 0, fmt.Errorf("%s %q: want a number from %d to %d", what, s, low, high)
	}
	return v, nil
}

func (p *parser) declare(name string) error {
	if len(p.scope.names) == maxNames {
		return fmt.Errorf("more than %d names at once", maxNames)
	}
	p.scope.names = append(p.scope.names, name)
	return nil
}

func (p *parser) table(rest string) error {
	name, list, ok := strings.Cut(rest, ":")
	if !ok || !plainName(name) {
		return fmt.Errorf("want table NAME: NUMBER NUMBER ..., got %.60q", rest)
	}
	t := Table{Name: name}
	for _, f := range strings.Fields(list) {
		v, err := number("table "+name, f, 0, 1<<40)
		if err != nil {
			return err
		}
		t.Values = append(t.Values, int64(v))
	}
	p.prog.Tables = append(p.prog.Tables, t)
	p.scope.tables = p.prog.Tables
	return p.prog.checkTables()
}

func (p *parser) order(rest string) error {
	head, list, ok := strings.Cut(rest, ":")
	c, err := number("order", head, 0, maxChannels)
	if !ok || err != nil {
		return fmt.Errorf("want order CHANNEL: RANK RANK ..., got %q", rest)
	}
	var ranks []Rank
	for _, f := range strings.Fields(list) {
		r, err := number("order", f, 0, maxRanks)
		if err != nil {
			return err
		}
		ranks = append(ranks, Rank(r))
	}
	for len(p.prog.Orders) <= c {
		p.prog.Orders = append(p.prog.Orders, nil)
	}
	p.prog.Orders[c] = ranks
	return nil
}

func (p *parser) group(rest string) error {
	head, ok := strings.CutSuffix(rest, ":")
	if !ok {
		return fmt.Errorf("want channels NUMBER: and indented steps, got %q", rest)
	}
	count, err := number("channels", head, 1, maxChannels)
	if err != nil {
		return err
	}
	body, err := p.block(0, 0)
	p.prog.Groups = append(p.prog.Groups, Group{count, body})
	return err
}

// block reads the lines indented below the current one, which it leaves as the last one read.
func (p *parser) block(outer, depth int) ([]Stmt, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("statements nest deeper than %d", maxDepth)
	}
	var body []Stmt
	indent := -1
	for p.at+1 < len(p.lines) && p.lines[p.at+1].indent > outer {
		p.at++
		l := p.lines[p.at]
		if indent < 0 {
			indent = l.indent
		}
		if l.indent != indent {
			return nil, fmt.Errorf("%q is indented by %d, its neighbours by %d", l.text, l.indent, indent)
		}
		s, err := p.stmt(l, depth)
		if err != nil {
			return nil, err
		}
		body = append(body, s)
	}
	return body, nil
}

func (p *parser) stmt(l textLine, depth int) (Stmt, error) {
	word, rest, _ := strings.Cut(l.text, " ")
	switch word {
	case "repeat":
		head, ok := strings.CutSuffix(rest, ":")
		name, count, ok2 := strings.Cut(head, " < ")
		if !ok || !ok2 || !plainName(name) {
			return Stmt{}, fmt.Errorf("want repeat NAME < EXPRESSION:, got %q", l.text)
		}
		n, err := p.whole(count)
		if err != nil {
			return Stmt{}, err
		}
		if _, taken := p.scope.find(name); taken || p.prog.hasTable(name) {
			return Stmt{}, fmt.Errorf("name %q is taken", name)
		}
		if err := p.declare(name); err != nil {
			return Stmt{}, err
		}
		loop := &Loop{Var: name, Count: n, Line: int32(l.number), slot: len(p.scope.names) - 1}
		loop.Body, err = p.block(l.indent, depth+1)
		p.scope.names = p.scope.names[:len(p.scope.names)-1]
		return Stmt{Loop: loop}, err
	case "if":
		head, ok := strings.CutSuffix(rest, ":")
		if !ok {
			return Stmt{}, fmt.Errorf("want if EXPRESSION:, got %q", l.text)
		}
		cond, err := p.whole(head)
		if err != nil {
			return Stmt{}, err
		}
		c := &If{Cond: cond, Line: int32(l.number)}
		if c.Then, err = p.block(l.indent, depth+1); err != nil {
			return Stmt{}, err
		}
		if p.at+1 < len(p.lines) && p.lines[p.at+1].text == "else:" && p.lines[p.at+1].indent == l.indent {
			p.at++
			c.Else, err = p.block(l.indent, depth+1)
		}
		return Stmt{If: c}, err
	}
	s, err := p.step(word, rest)
	if err != nil {
		return Stmt{}, err
	}
	s.Line = int32(l.number)
	return Stmt{Step: s}, nil
}

// step reads a step and its operands, which the operation decides.
func (p *parser) step(word, rest string) (*Step, error) {
	op, err := lookup[Op]("step", opNames, word)
	if err != nil {
		return nil, fmt.Errorf("%w; a loop is written \"repeat NAME < COUNT:\", a condition \"if EXPRESSION:\"", err)
	}
	s := &Step{Op: op}
	e := &exprParser{text: rest, scope: p.scope}
	if op == Wait {
		if s.Channel, err = e.after("channel"); err == nil {
			s.Done, err = e.after("done")
		}
	}
	if err == nil && op.Reads() {
		s.Src, err = e.ref()
	}
	if err == nil && op.Stores() {
		if err = e.word("->"); err == nil {
			s.Dst, err = e.ref()
		}
	}
	if err == nil && op.Receives() {
		s.From, err = e.after("from")
	}
	if err == nil && op.Sends() {
		s.To, err = e.after("to")
	}
	if err == nil {
		if e.skip(); e.pos < len(e.text) {
			err = fmt.Errorf("%q is left over", e.text[e.pos:])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; want %s", word, err, op.form())
	}
	return s, nil
}

// form is how a step is written.
func (op Op) form() string {
	form := opNames[op]
	if op == Wait {
		form += " channel CHANNEL done STEPS"
	}
	if op.Reads() {
		form += " SOURCE"
	}
	if op.Stores() {
		form += " -> DESTINATION"
	}
	if op.Receives() {
		form += " from RANK"
	}
	if op.Sends() {
		form += " to RANK"
	}
	return form
}

func (p *parser) whole(text string) (*Expr, error) {
	e := &exprParser{text: text, scope: p.scope}
	x, err := e.expr(0)
	if err == nil {
		if e.skip(); e.pos < len(e.text) {
			err = fmt.Errorf("%q is left over in %q", e.text[e.pos:], text)
		}
	}
	return x, err
}

func (p *exprParser) word(w string) error {
	p.skip()
	if !strings.HasPrefix(p.text[p.pos:], w) {
		return fmt.Errorf("expected %q at %q", w, p.text[p.pos:])
	}
	p.pos += len(w)
	return nil
}

func (p *exprParser) after(w string) (*Expr, error) {
	if err := p.word(w); err != nil {
		return nil, err
	}
	return p.expr(0)
}

// ref reads chunks of a buffer: in[INDEX] or in[INDEX +: COUNT].
func (p *exprParser) ref() (Ref, error) {
	p.skip()
	var r Ref
	for b := In; b <= Tmp; b++ {
		if strings.HasPrefix(p.text[p.pos:], bufferNames[b]+"[") {
			r.Buf = b
			p.pos += len(bufferNames[b]) + 1
		}
	}
	if r.Buf == 0 {
		return r, fmt.Errorf("expected in[...], out[...] or tmp[...] at %q", p.text[p.pos:])
	}
	var err error
	if r.Index, err = p.expr(0); err != nil {
		return r, err
	}
	p.skip()
	if strings.HasPrefix(p.text[p.pos:], "+:") {
		p.pos += 2
		if r.Count, err = p.expr(0); err != nil {
			return r, err
		}
	}
	return r, p.word("]")
}
