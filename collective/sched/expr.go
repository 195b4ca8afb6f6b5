package sched

import (
	"fmt"
	"strconv"
	"strings"
)

// Env holds the numbers that an expression may name, by slot. Its last slot says
// whether an expression was undefined: see Undefined.
type Env [envSize]int64

// Undefined returns why an expression that was evaluated with the Env has no
// value, "" if all had one.
func (e *Env) Undefined() string { return undefined[e[slotUndefined]] }

// The reasons why an expression has no value.
const (
	divides = iota + 1
	shifts
	misses
)

var undefined = []string{"", divides: "divides by zero", shifts: "shifts by less than 0 or more than 62 bits",
	misses: "looks outside of a table"}

const (
	slotRank    = 0 // r: this rank's position on the channel
	slotRanks   = 1 // n
	slotChannel = 2 // c
	slotFirst   = 3 // lets, then loop variables
	envSize     = 24

	slotUndefined = envSize - 1
	maxNames      = envSize - 1
)

// Kind says what an expression node is.
type Kind uint8

// The kinds of expression. Division and remainder round down, so that a
// remainder of a positive number is never negative: (r-1)%n is the rank before.
const (
	Num Kind = iota
	Var
	Add
	Sub
	Mul
	Div
	Mod
	Xor
	Shl
	Eq
	Ne
	Lt
	Le
	And
	Or
	Min  // the smaller of two, written a min b
	Look // the entry of a table, written table[index]
)

var kindSigns = []string{Add: "+", Sub: "-", Mul: "*", Div: "/", Mod: "%", Xor: "^", Shl: "<<", Eq: "==", Ne: "!=", Lt: "<", Le: "<=",
	And: "&&", Or: "||", Min: "min"}

// binding strength: higher binds tighter.
var kindLevel = []int{Add: 5, Sub: 5, Mul: 6, Div: 6, Mod: 6, Xor: 4, Shl: 4, Eq: 2, Ne: 2, Lt: 2, Le: 2, And: 1, Or: 0, Min: 3}

// Expr is an integer expression.
type Expr struct {
	Kind Kind
	Val  int64  // Num
	Name string // Var; Look: of the table
	L, R *Expr  // Look: L is the index

	slot  int
	table []int64
}

// N makes a number.
func N(v int) *Expr { return &Expr{Kind: Num, Val: int64(v)} }

// Eval computes the expression. A division by zero, a remainder of one, a shift
// by less than 0 or more than 62 bits, or an entry that a table does not have
// gives 0 and marks the Env, which Undefined reports: a step that depends on it is an error. && and || look at
// their right side only if they need it, so a condition may guard a division.
func (e *Expr) Eval(env *Env) int64 {
	switch e.Kind {
	case Num:
		return e.Val
	case Var:
		return env[e.slot]
	}
	a := e.L.leaf(env)
	if e.Kind == Look {
		if a < 0 || a >= int64(len(e.table)) {
			env[slotUndefined] = misses
			return 0
		}
		return e.table[a]
	}
	if e.Kind == And && a == 0 || e.Kind == Or && a != 0 {
		return truth(e.Kind == Or)
	}
	b := e.R.leaf(env)
	switch e.Kind {
	case Add:
		return a + b
	case Sub:
		return a - b
	case Mul:
		return a * b
	case Div:
		if b == 0 {
			env[slotUndefined] = divides
			return 0
		}
		q := a / b
		if a%b != 0 && (a < 0) != (b < 0) {
			q--
		}
		return q
	case Mod:
		if b == 0 {
			env[slotUndefined] = divides
			return 0
		}
		m := a % b
		if m != 0 && (m < 0) != (b < 0) {
			m += b
		}
		return m
	case Xor:
		return a ^ b
	case Shl:
		if b < 0 || b > 62 {
			env[slotUndefined] = shifts
			return 0
		}
		return a << b
	case Eq:
		return truth(a == b)
	case Ne:
		return truth(a != b)
	case Lt:
		return truth(a < b)
	case Le:
		return truth(a <= b)
	case And:
		return truth(a != 0 && b != 0)
	case Min:
		return min(a, b)
	default:
		return truth(a != 0 || b != 0)
	}
}

// leaf is Eval without a call for names and numbers, which most operands are.
func (e *Expr) leaf(env *Env) int64 {
	switch e.Kind {
	case Num:
		return e.Val
	case Var:
		return env[e.slot]
	}
	return e.Eval(env)
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// String prints the expression so that it parses back to the same tree.
func (e *Expr) String() string {
	var b strings.Builder
	e.print(&b, 0)
	return b.String()
}

// print writes an expression with no more parentheses than its reader needs. level is how strongly the operator around
// it binds.
func (e *Expr) print(b *strings.Builder, level int) {
	switch e.Kind {
	case Num:
		if e.Val < 0 {
			fmt.Fprintf(b, "(0-%d)", -e.Val)
			return
		}
		b.WriteString(strconv.FormatInt(e.Val, 10))
		return
	case Var:
		b.WriteString(e.Name)
		return
	case Look:
		b.WriteString(e.Name)
		b.WriteByte('[')
		e.L.print(b, 0)
		b.WriteByte(']')
		return
	}
	mine := kindLevel[e.Kind]
	if mine < level {
		b.WriteByte('(')
	}
	e.L.print(b, mine)
	sign := kindSigns[e.Kind]
	if mine <= 3 {
		sign = " " + sign + " "
	}
	b.WriteString(sign)
	e.R.print(b, mine+1)
	if mine < level {
		b.WriteByte(')')
	}
}

// scope maps names to slots while a program is read, and knows its tables.
type scope struct {
	names  []string
	tables []Table
}

func (s *scope) table(name string) ([]int64, error) {
	var known []string
	for i := range s.tables {
		if s.tables[i].Name == name {
			return s.tables[i].Values, nil
		}
		known = append(known, s.tables[i].Name)
	}
	if known == nil {
		return nil, fmt.Errorf("no table %q; the program has none", name)
	}
	return nil, fmt.Errorf("no table %q; known: %s", name, join(known))
}

func (s *scope) find(name string) (int, bool) {
	for i := len(s.names) - 1; i >= 0; i-- {
		if s.names[i] == name {
			return i, true
		}
	}
	return 0, false
}

// maxDepth bounds how deep expressions and statements nest, so that no text can
// exhaust the stack.
const maxDepth = 64

type exprParser struct {
	text  string
	pos   int
	scope *scope
	depth int
}

func (p *exprParser) skip() {
	for p.pos < len(p.text) && p.text[p.pos] == ' ' {
		p.pos++
	}
}

// ends reports whether what stands at the cursor ends an expression, though it begins like an operator.
func (p *exprParser) ends() bool {
	return strings.HasPrefix(p.text[p.pos:], "->") || strings.HasPrefix(p.text[p.pos:], "+:")
}

// sign takes the operator at the cursor if its level is at least min.
func (p *exprParser) sign(min int) (Kind, bool) {
	p.skip()
	best := Kind(0)
	for k := Add; k <= Min; k++ {
		if strings.HasPrefix(p.text[p.pos:], kindSigns[k]) && (best == 0 || len(kindSigns[k]) > len(kindSigns[best])) {
			best = k
		}
	}
	if best == 0 || kindLevel[best] < min || p.ends() {
		return 0, false
	}
	p.pos += len(kindSigns[best])
	return best, true
}

// greater takes > or >= at the cursor: a > b is b < a, which is how it is printed.
func (p *exprParser) greater(min int) (Kind, bool) {
	rest := p.text[p.pos:]
	switch {
	case min > kindLevel[Lt] || !strings.HasPrefix(rest, ">"):
		return 0, false
	case strings.HasPrefix(rest, ">="):
		p.pos += 2
		return Le, true
	}
	p.pos++
	return Lt, true
}

// expr reads operators that bind at least as strongly as min, from left to right. a > b is read as b < a.
func (p *exprParser) expr(min int) (*Expr, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("expression nests deeper than %d", maxDepth)
	}
	defer func() { p.depth-- }()
	l, err := p.operand()
	if err != nil {
		return nil, err
	}
	for {
		k, ok := p.sign(min)
		swapped := false
		if !ok {
			if k, swapped = p.greater(min); !swapped {
				return l, nil
			}
		}
		r, err := p.expr(kindLevel[k] + 1)
		if err != nil {
			return nil, err
		}
		if swapped {
			l, r = r, l
		}
		l = &Expr{Kind: k, L: l, R: r}
	}
}

func (p *exprParser) parenthesis() (*Expr, error) {
	p.pos++
	e, err := p.expr(0)
	if err != nil {
		return nil, err
	}
	p.skip()
	if p.pos == len(p.text) || p.text[p.pos] != ')' {
		return nil, fmt.Errorf("a closing parenthesis is missing at %q", p.text[p.pos:])
	}
	p.pos++
	return e, nil
}

// letters takes the name or number at the cursor.
func (p *exprParser) letters() string {
	start := p.pos
	for p.pos < len(p.text) && wordByte(p.text[p.pos]) {
		p.pos++
	}
	return p.text[start:p.pos]
}

// operand reads a number, a name, a table entry or parentheses. Numbers have at most 48 bits, so that products of small
// ones stay in range.
func (p *exprParser) operand() (*Expr, error) {
	p.skip()
	if p.pos == len(p.text) {
		return nil, fmt.Errorf("an expression is missing at the end")
	}
	if p.text[p.pos] == '(' {
		return p.parenthesis()
	}
	word := p.letters()
	switch {
	case word == "":
		return nil, fmt.Errorf("expected a number or a name at %q", p.text[p.pos:])
	case word[0] >= '0' && word[0] <= '9':
		v, err := strconv.ParseInt(word, 10, 48)
		if err != nil {
			return nil, fmt.Errorf("number %q is too large", word)
		}
		return &Expr{Kind: Num, Val: v}, nil
	}
	if p.pos < len(p.text) && p.text[p.pos] == '[' {
		return p.look(word)
	}
	slot, ok := p.scope.find(word)
	if !ok {
		return nil, fmt.Errorf("unknown name %q; known here: %s", word, join(p.scope.names))
	}
	return &Expr{Kind: Var, Name: word, slot: slot}, nil
}

// look reads the index of a table's entry.
func (p *exprParser) look(name string) (*Expr, error) {
	values, err := p.scope.table(name)
	if err != nil {
		return nil, err
	}
	p.pos++
	index, err := p.expr(0)
	if err != nil {
		return nil, err
	}
	if p.skip(); p.pos == len(p.text) || p.text[p.pos] != ']' {
		return nil, fmt.Errorf("a closing bracket is missing at %q", p.text[p.pos:])
	}
	p.pos++
	return &Expr{Kind: Look, Name: name, L: index, table: values}, nil
}

func wordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
}

func join(names []string) string { return strings.Join(names, ", ") }
