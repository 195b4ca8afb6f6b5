package soft

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/run/gpu/ptx"
	"github.com/weft-fabric/weft/run/reduce"
)

// kernel is a PTX text made ready to be interpreted. It knows the instructions that run/gpu/ptx writes, with the meaning that NVIDIA's
// manual gives them, what it says of NaNs included: a result that is not a number is 0x7fffffff, 0x7fff or their like.
type kernel struct {
	code      []instruction
	registers int
}

// instruction is one step of a thread; jump is where it goes if it is a branch that is taken.
type instruction struct {
	do     func(*thread) error
	branch int // -1 for what is none
	guard  int // the register of its predicate, -1 for none
}

// thread is a thread of a kernel.
type thread struct {
	regs   []uint64
	params []byte
	local  []byte
	memory func(at uint64, bytes int) ([]byte, error)
	// special registers
	tid, ntid, ctaid, nctaid uint32
}

// reader turns text into instructions.
type reader struct {
	regs   map[string]int
	labels map[string]int
	params map[string]uint64
}

// lines are the instructions of a kernel's body. Labels are noted: they name the instruction after them.
func (rd *reader) lines(body string) (list []string) {
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line == "}" || strings.HasPrefix(line, ".reg") || strings.HasPrefix(line, ".local"):
		case strings.HasSuffix(line, ":"):
			rd.labels[strings.TrimSuffix(line, ":")] = len(list)
		default:
			list = append(list, strings.TrimSuffix(line, ";"))
		}
	}
	return list
}

// compile reads a text.
func compile(text string) (*kernel, error) {
	rd := &reader{regs: map[string]int{}, labels: map[string]int{}, params: map[string]uint64{}}
	at := uint64(0)
	names := []string{"srcs", "dsts", "nsrc", "ndst", "head", "body", "count", "factor", "merges"}
	for i, name := range names {
		rd.params[name] = at
		at += uint64(ptx.Params[i])
	}
	rd.params[ptx.Pending] = 0
	rd.params["table"], rd.params["pieces"] = 0, 8 // of ptx.Pieces
	_, body, found := strings.Cut(text, "{\n")
	if !found {
		return nil, fmt.Errorf("no kernel in %q", text)
	}
	k := &kernel{}
	for _, line := range rd.lines(body) {
		in, err := rd.instruction(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		k.code = append(k.code, in)
	}
	k.registers = len(rd.regs)
	return k, nil
}

// run carries out all threads of a grid, one after the other.
func (k *kernel) run(blocks, threads int, params []byte, memory func(at uint64, bytes int) ([]byte, error)) error {
	t := &thread{regs: make([]uint64, k.registers), params: params, local: make([]byte, ptx.PendingBytes), memory: memory,
		ntid: uint32(threads), nctaid: uint32(blocks)}
	for b := range blocks {
		for i := range threads {
			t.ctaid, t.tid = uint32(b), uint32(i)
			for pc := 0; pc < len(k.code); {
				in := &k.code[pc]
				pc++
				if in.guard >= 0 && t.regs[in.guard] == 0 {
					continue
				}
				if in.branch >= 0 {
					pc = in.branch
					continue
				}
				if in.do == nil { // ret
					break
				}
				if err := in.do(t); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// register is the number of a register.
func (rd *reader) register(name string) int {
	i, known := rd.regs[name]
	if !known {
		i = len(rd.regs)
		rd.regs[name] = i
	}
	return i
}

// operand reads a register or a constant.
func (rd *reader) operand(s string) (func(*thread) uint64, error) {
	switch {
	case s == "%tid.x":
		return func(t *thread) uint64 { return uint64(t.tid) }, nil
	case s == "%ntid.x":
		return func(t *thread) uint64 { return uint64(t.ntid) }, nil
	case s == "%ctaid.x":
		return func(t *thread) uint64 { return uint64(t.ctaid) }, nil
	case s == "%nctaid.x":
		return func(t *thread) uint64 { return uint64(t.nctaid) }, nil
	case strings.HasPrefix(s, "%"):
		i := rd.register(s)
		return func(t *thread) uint64 { return t.regs[i] }, nil
	case strings.HasPrefix(s, "0f"):
		v, err := strconv.ParseUint(s[2:], 16, 32)
		return func(*thread) uint64 { return v }, err
	}
	name, offset, _ := strings.Cut(s, "+")
	if at, known := rd.params[name]; known {
		if offset != "" {
			n, err := strconv.ParseUint(offset, 10, 32)
			return func(*thread) uint64 { return at + n }, err
		}
		return func(*thread) uint64 { return at }, nil
	}
	v, err := strconv.ParseUint(s, 0, 64)
	return func(*thread) uint64 { return v }, err
}

// operands splits what an instruction is given; braces hold together.
func operands(s string) []string {
	var list []string
	depth, from := 0, 0
	for i, c := range s {
		switch {
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == ',' && depth == 0:
			list = append(list, strings.TrimSpace(s[from:i]))
			from = i + 1
		}
	}
	return append(list, strings.TrimSpace(s[from:]))
}

// instruction reads one line.
func (rd *reader) instruction(line string) (instruction, error) {
	in := instruction{branch: -1, guard: -1}
	if strings.HasPrefix(line, "@") {
		guard, rest, _ := strings.Cut(line[1:], " ")
		in.guard, line = rd.register(guard), rest
	}
	name, rest, _ := strings.Cut(line, " ")
	args := operands(rest)
	switch parts := strings.Split(name, "."); {
	case name == "ret":
		return in, nil
	case name == "bra":
		to, known := rd.labels[args[0]]
		if !known {
			return in, fmt.Errorf("no label %s", args[0])
		}
		in.branch = to
		return in, nil
	case parts[0] == "ld" || parts[0] == "st":
		do, err := rd.memory(parts, args)
		in.do = do
		return in, err
	case name == "mov.b32" && strings.HasPrefix(args[0], "{"):
		halves := strings.Split(strings.Trim(args[0], "{}"), ", ")
		lo, hi, from := rd.register(halves[0]), rd.register(halves[1]), rd.register(args[1])
		in.do = func(t *thread) error {
			t.regs[lo], t.regs[hi] = t.regs[from]&0xffff, t.regs[from]>>16&0xffff
			return nil
		}
		return in, nil
	}
	f, ok := instructions[name]
	if !ok {
		return in, fmt.Errorf("no instruction %s", name)
	}
	var from [4]func(*thread) uint64
	if len(args)-1 != f.args {
		return in, fmt.Errorf("%d operands; want %d", len(args)-1, f.args)
	}
	for i, a := range args[1:] {
		var err error
		if from[i], err = rd.operand(a); err != nil {
			return in, err
		}
	}
	to, mask, compute := rd.register(args[0]), f.mask, f.compute
	switch f.args {
	case 1:
		in.do = func(t *thread) error { t.regs[to] = compute(from[0](t), 0, 0, 0) & mask; return nil }
	case 2:
		in.do = func(t *thread) error { t.regs[to] = compute(from[0](t), from[1](t), 0, 0) & mask; return nil }
	case 3:
		in.do = func(t *thread) error { t.regs[to] = compute(from[0](t), from[1](t), from[2](t), 0) & mask; return nil }
	default:
		in.do = func(t *thread) error {
			t.regs[to] = compute(from[0](t), from[1](t), from[2](t), from[3](t)) & mask
			return nil
		}
	}
	return in, nil
}

// memory reads a load or store: ld.param.u64 r, [x]; ld.global.v4.b32 {..}, [x]; st.global.u8 [x], r.
func (rd *reader) memory(parts, args []string) (func(*thread) error, error) {
	address, values := args[1], args[0]
	if parts[0] == "st" {
		address, values = args[0], args[1]
	}
	at, err := rd.operand(strings.Trim(address, "[]"))
	if err != nil {
		return nil, err
	}
	kind := parts[len(parts)-1]
	bits, err := strconv.Atoi(kind[1:])
	if err != nil {
		return nil, err
	}
	size := bits / 8
	var regs []int
	for _, r := range strings.Split(strings.Trim(values, "{}"), ", ") {
		regs = append(regs, rd.register(r))
	}
	load, param, local := parts[0] == "ld", parts[1] == "param", parts[1] == "local"
	total := size * len(regs)
	return func(t *thread) error {
		b := t.params
		if param {
			b = b[at(t):]
		} else {
			a := at(t)
			if a%uint64(total) != 0 {
				return fmt.Errorf("%d bytes at %#x: not aligned", total, a)
			}
			if local {
				if a+uint64(total) > uint64(len(t.local)) {
					return fmt.Errorf("%d bytes at %d of %d of the thread's own", total, a, len(t.local))
				}
				b = t.local[a:]
			} else if m, err := t.memory(a, total); err != nil {
				return err
			} else {
				b = m
			}
		}
		for i, r := range regs {
			word := b[i*size:][:size]
			var v uint64
			switch {
			case !load && size == 1:
				word[0] = byte(t.regs[r])
			case !load && size == 2:
				binary.LittleEndian.PutUint16(word, uint16(t.regs[r]))
			case !load && size == 4:
				binary.LittleEndian.PutUint32(word, uint32(t.regs[r]))
			case !load:
				binary.LittleEndian.PutUint64(word, t.regs[r])
			case size == 1:
				v = uint64(word[0])
			case size == 2:
				v = uint64(binary.LittleEndian.Uint16(word))
			case size == 4:
				v = uint64(binary.LittleEndian.Uint32(word))
			default:
				v = binary.LittleEndian.Uint64(word)
			}
			if load {
				t.regs[r] = v
			}
		}
		return nil
	}, nil
}

// meaning is what an instruction computes, and which bits of it are kept.
type meaning struct {
	args    int
	mask    uint64
	compute func(a, b, c, d uint64) uint64
}

const (
	low16 = math.MaxUint16
	low32 = math.MaxUint32
	low64 = math.MaxUint64
)

// What an operation that is not a number gives on a GPU.
const (
	nan16 = 0x7fff
	nan32 = 0x7fffffff
	nan64 = 0x7fffffffffffffff
)

func f32(v uint64) float32 { return math.Float32frombits(uint32(v)) }
func f64(v uint64) float64 { return math.Float64frombits(v) }

func bits32(f float32) uint64 {
	if f != f {
		return nan32
	}
	return uint64(math.Float32bits(f))
}

func bits64(f float64) uint64 {
	if f != f {
		return nan64
	}
	return math.Float64bits(f)
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// two is an instruction with two operands.
func two(mask uint64, do func(a, b uint64) uint64) meaning {
	return meaning{2, mask, func(a, b, _, _ uint64) uint64 { return do(a, b) }}
}

// one is an instruction with one operand.
func one(mask uint64, do func(a uint64) uint64) meaning {
	return meaning{1, mask, func(a, _, _, _ uint64) uint64 { return do(a) }}
}

// field is bfe's bits.
func field(a, at, n uint64) uint64 { return a & low32 >> at & (1<<n - 1) }

// least is min of floats: the other one if one is not a number, and -0 is less than 0.
func least(a, b float64) float64 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	}
	return min(a, b)
}

func greatest(a, b float64) float64 { return -least(-a, -b) }

var instructions = map[string]meaning{
	"mov.u32": one(low32, func(a uint64) uint64 { return a }), "mov.b32": one(low32, func(a uint64) uint64 { return a }),
	"mov.u64": one(low64, func(a uint64) uint64 { return a }), "mov.b64": one(low64, func(a uint64) uint64 { return a }),
	"cvt.u64.u32": one(low32, func(a uint64) uint64 { return a }), "cvt.u32.u64": one(low32, func(a uint64) uint64 { return a }),
	"cvt.u32.u16": one(low16, func(a uint64) uint64 { return a }), "cvt.u16.u32": one(low16, func(a uint64) uint64 { return a }),
	"cvt.f32.f16": one(low32, func(a uint64) uint64 { return bits32(reduce.F16(a).Float32()) }),
	"cvt.rn.f16.f32": one(low16, func(a uint64) uint64 {
		if f := f32(a); f != f {
			return nan16
		}
		return uint64(reduce.ToF16(f32(a)))
	}),
	"cvt.rn.bf16.f32": one(low16, func(a uint64) uint64 {
		if f := f32(a); f != f {
			return nan16
		}
		return uint64(reduce.ToBF16(f32(a)))
	}),
	"mul.wide.u32": two(low64, func(a, b uint64) uint64 { return a * b }),
	"mul.lo.u64":   two(low64, func(a, b uint64) uint64 { return a * b }), "mul.lo.s64": two(low64, func(a, b uint64) uint64 { return a * b }),
	"mul.lo.u32": two(low32, func(a, b uint64) uint64 { return a * b }), "mul.lo.s32": two(low32, func(a, b uint64) uint64 { return a * b }),
	"add.u64": two(low64, func(a, b uint64) uint64 { return a + b }), "add.s64": two(low64, func(a, b uint64) uint64 { return a + b }),
	"add.u32": two(low32, func(a, b uint64) uint64 { return a + b }), "add.s32": two(low32, func(a, b uint64) uint64 { return a + b }),
	"sub.u64": two(low64, func(a, b uint64) uint64 { return a - b }), "sub.u32": two(low32, func(a, b uint64) uint64 { return a - b }),
	"and.b32": two(low32, func(a, b uint64) uint64 { return a & b }), "and.b64": two(low64, func(a, b uint64) uint64 { return a & b }),
	"or.b32": two(low32, func(a, b uint64) uint64 { return a | b }), "or.b64": two(low64, func(a, b uint64) uint64 { return a | b }),
	"xor.b32": two(low32, func(a, b uint64) uint64 { return a ^ b }), "xor.b64": two(low64, func(a, b uint64) uint64 { return a ^ b }),
	"shl.b32": two(low32, func(a, b uint64) uint64 { return a << b }), "shl.b64": two(low64, func(a, b uint64) uint64 { return a << b }),
	"shr.u32": two(low32, func(a, b uint64) uint64 { return a >> b }),
	"bfe.u32": {3, low32, func(a, at, n, _ uint64) uint64 { return field(a, at, n) }},
	"bfe.s32": {3, low32, func(a, at, n, _ uint64) uint64 { return uint64(int64(field(a, at, n)<<(64-n)) >> (64 - n)) }},
	"bfi.b32": {4, low32, func(a, b, at, n uint64) uint64 {
		mask := uint64(1<<n-1) << at
		return b&^mask | a<<at&mask
	}},
	"min.u32": two(low32, func(a, b uint64) uint64 { return min(a, b) }), "max.u32": two(low32, func(a, b uint64) uint64 { return max(a, b) }),
	"min.u64": two(low64, func(a, b uint64) uint64 { return min(a, b) }), "max.u64": two(low64, func(a, b uint64) uint64 { return max(a, b) }),
	"min.s32":      two(low32, func(a, b uint64) uint64 { return uint64(min(int32(a), int32(b))) }),
	"max.s32":      two(low32, func(a, b uint64) uint64 { return uint64(max(int32(a), int32(b))) }),
	"min.s64":      two(low64, func(a, b uint64) uint64 { return uint64(min(int64(a), int64(b))) }),
	"max.s64":      two(low64, func(a, b uint64) uint64 { return uint64(max(int64(a), int64(b))) }),
	"div.s32":      two(low32, func(a, b uint64) uint64 { return uint64(int32(a) / int32(b)) }),
	"div.u32":      two(low32, func(a, b uint64) uint64 { return a / b }),
	"div.s64":      two(low64, func(a, b uint64) uint64 { return uint64(int64(a) / int64(b)) }),
	"div.u64":      two(low64, func(a, b uint64) uint64 { return a / b }),
	"add.rn.f32":   two(low32, func(a, b uint64) uint64 { return bits32(f32(a) + f32(b)) }),
	"sub.rn.f32":   two(low32, func(a, b uint64) uint64 { return bits32(f32(a) - f32(b)) }),
	"mul.rn.f32":   two(low32, func(a, b uint64) uint64 { return bits32(f32(a) * f32(b)) }),
	"add.rn.f64":   two(low64, func(a, b uint64) uint64 { return bits64(f64(a) + f64(b)) }),
	"mul.rn.f64":   two(low64, func(a, b uint64) uint64 { return bits64(f64(a) * f64(b)) }),
	"min.f32":      two(low32, func(a, b uint64) uint64 { return bits32(float32(least(float64(f32(a)), float64(f32(b))))) }),
	"max.f32":      two(low32, func(a, b uint64) uint64 { return bits32(float32(greatest(float64(f32(a)), float64(f32(b))))) }),
	"min.f64":      two(low64, func(a, b uint64) uint64 { return bits64(least(f64(a), f64(b))) }),
	"max.f64":      two(low64, func(a, b uint64) uint64 { return bits64(greatest(f64(a), f64(b))) }),
	"setp.ge.u32":  two(1, func(a, b uint64) uint64 { return truth(a >= b) }),
	"setp.gt.u32":  two(1, func(a, b uint64) uint64 { return truth(a > b) }),
	"setp.lt.u32":  two(1, func(a, b uint64) uint64 { return truth(a < b) }),
	"setp.eq.u32":  two(1, func(a, b uint64) uint64 { return truth(a == b) }),
	"setp.ge.u64":  two(1, func(a, b uint64) uint64 { return truth(a >= b) }),
	"setp.nan.f32": two(1, func(a, b uint64) uint64 { return truth(f32(a) != f32(a) || f32(b) != f32(b)) }),
	"setp.nan.f64": two(1, func(a, b uint64) uint64 { return truth(f64(a) != f64(a) || f64(b) != f64(b)) }),
	"selp.b32":     {3, low32, func(a, b, p, _ uint64) uint64 { return choose(a, b, p) }},
	"selp.b64":     {3, low64, func(a, b, p, _ uint64) uint64 { return choose(a, b, p) }},
}

func choose(a, b, p uint64) uint64 {
	if p != 0 {
		return a
	}
	return b
}
