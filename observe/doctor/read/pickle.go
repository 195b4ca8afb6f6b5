package read

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
)

// A pickle is a program for a stack machine, and the machine of Python can be told
// to call any function. This reader knows only the instructions that build data.
// Everything else, above all those that name or call things, is refused.

// errCut says that the data end in the middle.
var errCut = fmt.Errorf("the file ends in the middle")

// errCode says that a pickle is more than data.
var errCode = errors.New("names or calls code")

const maxPickleDepth = 1 << 20

type pickleMark struct{}

// unpickle reads data. What was built before an error is given as well: the
// outermost value that is a map, or nil.
func unpickle(b []byte) (any, error) {
	p := &pickler{b: b, memo: map[int]any{}}
	v, err := p.run()
	if err != nil {
		return p.outermost(), err
	}
	return v, nil
}

// pdict and plist are references, as Python's are: an instruction that stores a
// list in the memo and one that appends to it mean the same list.
type pdict struct{ m map[string]any }
type plist struct{ l []any }

type pickler struct {
	b     []byte
	at    int
	stack []any
	memo  map[int]any
	items int
}

// outermost is the value that was under construction when the data ended. Open
// lists and maps are closed with what they have.
func (p *pickler) outermost() any {
	for p.closeOpen() {
	}
	for _, v := range p.stack {
		if d, ok := v.(*pdict); ok {
			return d
		}
	}
	return nil
}

// closeOpen ends the innermost mark: its items go to the container below it.
func (p *pickler) closeOpen() bool {
	for i := len(p.stack) - 1; i >= 0; i-- {
		if _, ok := p.stack[i].(pickleMark); !ok {
			continue
		}
		items := p.stack[i+1:]
		p.stack = p.stack[:i]
		if i > 0 {
			switch c := p.stack[i-1].(type) {
			case *pdict:
				for k := 0; k+1 < len(items); k += 2 {
					if name, ok := keyText(items[k]); ok {
						c.m[name] = items[k+1]
					}
				}
			case *plist:
				c.l = append(c.l, items...)
			}
		}
		return true
	}
	return false
}

func (p *pickler) take(n int) ([]byte, error) {
	if n < 0 || len(p.b)-p.at < n {
		return nil, errCut
	}
	s := p.b[p.at : p.at+n]
	p.at += n
	return s, nil
}

func (p *pickler) line() (string, error) {
	for i := p.at; i < len(p.b); i++ {
		if p.b[i] == '\n' {
			s := string(p.b[p.at:i])
			p.at = i + 1
			return s, nil
		}
	}
	return "", errCut
}

func (p *pickler) push(v any) error {
	if len(p.stack) >= maxPickleDepth {
		return fmt.Errorf("more than %d values are open", maxPickleDepth)
	}
	p.stack = append(p.stack, v)
	return nil
}

func (p *pickler) pop() (any, error) {
	if len(p.stack) == 0 {
		return nil, fmt.Errorf("byte %d takes a value from an empty stack", p.at-1)
	}
	v := p.stack[len(p.stack)-1]
	p.stack = p.stack[:len(p.stack)-1]
	return v, nil
}

// marked takes the values above the last mark.
func (p *pickler) marked() ([]any, error) {
	for i := len(p.stack) - 1; i >= 0; i-- {
		if _, ok := p.stack[i].(pickleMark); ok {
			items := append([]any(nil), p.stack[i+1:]...)
			p.stack = p.stack[:i]
			return items, nil
		}
	}
	return nil, fmt.Errorf("byte %d needs a missing mark", p.at-1)
}

func keyText(k any) (string, bool) {
	switch k := k.(type) {
	case string:
		return k, true
	case int64:
		return fmt.Sprint(k), true
	}
	return "", false
}

// set is SETITEMS: it stores pairs into the dictionary on top of the stack.
func (p *pickler) set(items []any) error {
	if len(p.stack) == 0 {
		return fmt.Errorf("byte %d stores into nothing", p.at-1)
	}
	d, ok := p.stack[len(p.stack)-1].(*pdict)
	if !ok {
		return fmt.Errorf("byte %d stores an item into something that is not a dictionary", p.at-1)
	}
	if len(items)%2 != 0 {
		return fmt.Errorf("byte %d stores a key without a value", p.at-1)
	}
	for i := 0; i < len(items); i += 2 {
		name, ok := keyText(items[i])
		if !ok {
			return fmt.Errorf("byte %d uses a key that is neither text nor a number", p.at-1)
		}
		d.m[name] = items[i+1]
	}
	return nil
}

// run carries out instructions until STOP, which returns the top of the stack. Instructions that would call code are
// refused by do.
func (p *pickler) run() (any, error) {
	for {
		op, err := p.take(1)
		if err != nil {
			return nil, err
		}
		if p.items++; p.items > 1<<28 {
			return nil, fmt.Errorf("more than %d instructions", 1<<28)
		}
		if op[0] == '.' { // STOP
			return p.pop()
		}
		if err := p.do(op[0]); err != nil {
			return nil, err
		}
	}
}

// do obeys one instruction.
func (p *pickler) do(op byte) error {
	switch op {
	case 0x80: // PROTO
		v, err := p.take(1)
		if err == nil && v[0] > 5 {
			err = fmt.Errorf("pickle protocol %d is newer than 5", v[0])
		}
		return err
	case 0x95: // FRAME
		_, err := p.take(8)
		return err
	case '(':
		return p.push(pickleMark{})
	case '0':
		_, err := p.pop()
		return err
	case '1':
		_, err := p.marked()
		return err
	case '2':
		v, err := p.pop()
		if err == nil {
			p.push(v)
			err = p.push(v)
		}
		return err
	case '}', ']', ')', 'd', 'l', 't', 0x85, 0x86, 0x87:
		return p.container(op)
	case 'a', 'e':
		return p.extend(op)
	case 's', 'u':
		return p.store(op)
	case 'q', 'r', 0x94: // BINPUT, LONG_BINPUT, MEMOIZE
		return p.remember(op)
	case 'h', 'j': // BINGET, LONG_BINGET
		return p.recall(op)
	case 'c', 'i', 'o', 'R', 'b', 0x81, 0x92, 0x93, 'P', 'Q', 0x82, 0x83, 0x84, 0x97, 0x98:
		return fmt.Errorf("byte %d (%s) %w; a dump of data has none: refused", p.at-1, pickleOp(op), errCode)
	}
	return p.scalar(op)
}

// container makes maps, lists and tuples, empty or of what is on the stack.
func (p *pickler) container(op byte) error {
	switch op {
	case '}':
		return p.push(&pdict{map[string]any{}})
	case ']', ')':
		return p.push(&plist{})
	case 0x85, 0x86, 0x87: // TUPLE1 to TUPLE3
		n := int(op) - 0x84
		if len(p.stack) < n {
			return fmt.Errorf("byte %d makes a tuple of missing values", p.at-1)
		}
		items := append([]any(nil), p.stack[len(p.stack)-n:]...)
		p.stack = p.stack[:len(p.stack)-n]
		return p.push(&plist{items})
	}
	items, err := p.marked()
	if err != nil {
		return err
	}
	if op != 'd' {
		return p.push(&plist{items})
	}
	if err := p.push(&pdict{map[string]any{}}); err != nil {
		return err
	}
	return p.set(items)
}

// extend appends one value or all above the mark to the list below.
func (p *pickler) extend(op byte) error {
	var items []any
	var err error
	if op == 'e' {
		items, err = p.marked()
	} else {
		var v any
		v, err = p.pop()
		items = []any{v}
	}
	if err != nil {
		return err
	}
	var l *plist
	if len(p.stack) > 0 {
		l, _ = p.stack[len(p.stack)-1].(*plist)
	}
	if l == nil {
		return fmt.Errorf("byte %d appends to something that is not a list", p.at-1)
	}
	l.l = append(l.l, items...)
	return nil
}

// store puts one pair or all above the mark into the map below.
func (p *pickler) store(op byte) error {
	if op == 'u' {
		items, err := p.marked()
		if err != nil {
			return err
		}
		return p.set(items)
	}
	v, err := p.pop()
	if err != nil {
		return err
	}
	k, err := p.pop()
	if err != nil {
		return err
	}
	return p.set([]any{k, v})
}

// integer pushes a number of one, two or four bytes. Only that of four (BININT) has a sign.
func (p *pickler) integer(op byte) error {
	n, err := p.little(operand[op])
	if err != nil {
		return err
	}
	if op == 'J' {
		n = int(int32(n))
	}
	return p.push(int64(n))
}

// long pushes a number of any length (LONG1, LONG4).
func (p *pickler) long(op byte) error {
	n, err := p.little(operand[op])
	if err != nil {
		return err
	}
	b, err := p.take(int(int32(n)))
	if err != nil {
		return err
	}
	return p.push(long(b))
}

func (p *pickler) text(op byte) error {
	n, err := p.little(operand[op])
	if err != nil {
		return err
	}
	b, err := p.take(n)
	if err != nil {
		return err
	}
	return p.push(string(b))
}

// scalar pushes a number, a text or a constant.
func (p *pickler) scalar(op byte) error {
	switch op {
	case 'N':
		return p.push(nil)
	case 0x88, 0x89:
		return p.push(op == 0x88)
	case 'I', 'L', 'F', 'S', 'V': // text forms of protocol 0
		s, err := p.line()
		if err != nil {
			return err
		}
		return p.textual(op, s)
	case 'J', 'K', 'M':
		return p.integer(op)
	case 0x8a, 0x8b:
		return p.long(op)
	case 'G':
		b, err := p.take(8)
		if err != nil {
			return err
		}
		return p.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	case 'X', 'T', 'B', 0x8c, 'U', 'C', 0x8d, 0x8e: // text and bytes with their length
		return p.text(op)
	}
	return fmt.Errorf("byte %d is not a pickle instruction (0x%02x)", p.at-1, op)
}

// operand is how many bytes the number after an instruction has: a value, a length or a place in the memo.
var operand = [256]int{'J': 4, 'K': 1, 'M': 2, 0x8a: 1, 0x8b: 4, 'X': 4, 'T': 4, 'B': 4, 0x8c: 1, 'U': 1, 'C': 1, 0x8d: 8, 0x8e: 8, 'q': 1,
	'r': 4, 'h': 1, 'j': 4}

// little reads a number of size bytes, the lowest first.
func (p *pickler) little(size int) (int, error) {
	b, err := p.take(size)
	if err != nil {
		return 0, err
	}
	n := 0
	for i := size - 1; i >= 0; i-- {
		if n > 1<<40 {
			return 0, fmt.Errorf("byte %d: text of impossible length", p.at-1)
		}
		n = n<<8 | int(b[i])
	}
	return n, nil
}

// remember stores the top of the stack in the memo.
func (p *pickler) remember(op byte) error {
	n, err := len(p.memo), error(nil)
	if op != 0x94 {
		n, err = p.little(operand[op])
	}
	if err != nil {
		return err
	}
	if len(p.stack) == 0 {
		return fmt.Errorf("byte %d remembers nothing", p.at-1)
	}
	p.memo[n] = p.stack[len(p.stack)-1]
	return nil
}

// recall pushes what remember stored.
func (p *pickler) recall(op byte) error {
	n, err := p.little(operand[op])
	if err != nil {
		return err
	}
	v, ok := p.memo[n]
	if !ok {
		return fmt.Errorf("byte %d takes %d from the memo, which was not stored", p.at-1, n)
	}
	return p.push(v)
}

func pickleOp(b byte) string {
	names := map[byte]string{'c': "GLOBAL", 'i': "INST", 'o': "OBJ", 'R': "REDUCE", 'b': "BUILD", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX",
		0x93: "STACK_GLOBAL",
		'P':  "PERSID", 'Q': "BINPERSID", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER"}
	return names[b]
}

// textInteger pushes a number, or one of the two INT texts that stand for truth values.
func (p *pickler) textInteger(op byte, s string) error {
	if op == 'I' && (s == "00" || s == "01") {
		return p.push(s == "01")
	}
	var v int64
	if _, err := fmt.Sscan(strings.TrimSuffix(s, "L"), &v); err != nil {
		return fmt.Errorf("byte %d: %q is not a number", p.at-1, clip(strings.TrimSuffix(s, "L")))
	}
	return p.push(v)
}

// textual pushes what instructions of protocol 0 write as a line of text.
func (p *pickler) textual(op byte, s string) error {
	switch op {
	case 'I', 'L':
		return p.textInteger(op, s)
	case 'F':
		var v float64
		if _, err := fmt.Sscan(s, &v); err != nil {
			return fmt.Errorf("byte %d: %q is not a number", p.at-1, clip(s))
		}
		return p.push(v)
	case 'S':
		if len(s) >= 2 && (s[0] == '\'' || s[0] == '"') && s[len(s)-1] == s[0] {
			s = s[1 : len(s)-1]
		}
	}
	return p.push(s)
}

// long reads a little-endian two's complement number of any length; one that does
// not fit is cut to the largest.
func long(b []byte) int64 {
	if len(b) <= 8 {
		var v uint64
		for i := len(b) - 1; i >= 0; i-- {
			v = v<<8 | uint64(b[i])
		}
		if n := len(b); n > 0 && n < 8 && b[n-1]&0x80 != 0 {
			v |= ^uint64(0) << (8 * n)
		}
		return int64(v)
	}
	be := make([]byte, len(b))
	for i := range b {
		be[len(b)-1-i] = b[i]
	}
	if be[0]&0x80 != 0 {
		return math.MinInt64
	}
	if v := new(big.Int).SetBytes(be); v.IsInt64() {
		return v.Int64()
	}
	return math.MaxInt64
}
