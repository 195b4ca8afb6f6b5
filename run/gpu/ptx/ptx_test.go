package ptx

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
)

var update = flag.Bool("update", false, "write testdata")

// tree is the form of float sums in the order of a tree.
func tree(n int) Form { return FormOf(reduce.Float32, reduce.Sum, reduce.Tree(n)) }

// every is all kernels, by name.
func every(t *testing.T, do func(name, text string, sm int)) {
	t.Helper()
	for _, sm := range []int{70, 80} {
		text, err := Kernel(0, 0, Pieces, sm)
		if err != nil {
			t.Fatal(err)
		}
		do(fmt.Sprintf("pieces-sm_%d", sm), text, sm)
		for _, typ := range reduce.Types() {
			for _, op := range reduce.Ops() {
				if reduce.Check(typ, op) != nil {
					continue
				}
				for _, form := range []Form{InTurn, AnyOrder, tree(4), tree(8)} {
					if form != InTurn && (!reduce.Ordered(typ, op) || op == reduce.PreMulSum) {
						continue
					}
					text, err := Kernel(typ, op, form, sm)
					if err != nil {
						t.Fatal(err)
					}
					name := fmt.Sprintf("%s-%s-sm_%d", typ, op, sm)
					switch {
					case form == AnyOrder:
						name += "-ordered"
					case form != InTurn:
						name += fmt.Sprintf("-tree%d", len(form))
					}
					do(name, text, sm)
				}
			}
		}
	}
}

// The texts are those that were looked at: three as they are, all by their hashes.
func TestGolden(t *testing.T) {
	var sums strings.Builder
	every(t, func(name, text string, sm int) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte(text)), name)
		switch name {
		case "float32-sum-sm_80", "float32-sum-sm_80-ordered", "float32-sum-sm_80-tree4", "bfloat16-avg-sm_80", "int8-max-sm_70",
			"pieces-sm_80":
			golden(t, name+".ptx", []byte(text))
		}
	})
	golden(t, "sums", []byte(sums.String()))
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not as it was; if that is meant, run go test ./run/gpu/ptx -update, read the difference, and run run/gpu/check on a GPU",
			name)
	}
}

var (
	register    = regexp.MustCompile(`%([phrd])(\d+)\b`)
	declaration = regexp.MustCompile(`\.reg \.(pred|b16|b32|b64) %([phrd])<(\d+)>;`)
	label       = regexp.MustCompile(`(?m)^(\w+):$`)
	branch      = regexp.MustCompile(`bra (\w+);`)
)

// What a compiler would refuse at once: registers that are not declared, labels that are missing or there twice, lines without
// an end, and instructions that the target does not have.
func TestTextsAreWellFormed(t *testing.T) {
	// By the manual: the least target of instructions that not all have.
	since := map[string]int{"cvt.rn.bf16.f32": 80}
	every(t, func(name, text string, sm int) {
		declared := map[string]int{}
		for _, m := range declaration.FindAllStringSubmatch(text, -1) {
			declared[m[2]], _ = strconv.Atoi(m[3])
		}
		_, body, _ := strings.Cut(text, "{\n")
		for _, m := range register.FindAllStringSubmatch(declaration.ReplaceAllString(body, ""), -1) {
			if n, _ := strconv.Atoi(m[2]); n >= declared[m[1]] {
				t.Errorf("%s: register %s is not declared", name, m[0])
			}
		}
		labels := map[string]int{}
		for _, m := range label.FindAllStringSubmatch(body, -1) {
			labels[m[1]]++
		}
		for _, m := range branch.FindAllStringSubmatch(body, -1) {
			if labels[m[1]] != 1 {
				t.Errorf("%s: label %s is there %d times", name, m[1], labels[m[1]])
			}
		}
		if !strings.Contains(text, fmt.Sprintf(".target sm_%d\n", sm)) {
			t.Errorf("%s: not for its target", name)
		}
		for line := range strings.Lines(body) {
			line = strings.TrimSpace(line)
			if line != "" && line != "}" && !strings.HasSuffix(line, ":") && !strings.HasSuffix(line, ";") {
				t.Errorf("%s: %q has no end", name, line)
			}
			if op, _, _ := strings.Cut(line, " "); since[op] > sm {
				t.Errorf("%s: %s is of sm_%d", name, op, since[op])
			}
			if strings.Contains(line, "fma") || strings.Contains(line, ".ftz") {
				t.Errorf("%s: %q does not round as reduce does", name, line)
			}
		}
	})
	if _, err := Kernel(reduce.Float32, reduce.BAnd, InTurn, 80); err == nil {
		t.Error("bits of floats are not reduced")
	}
	if _, err := Kernel(reduce.Float32, reduce.Sum, InTurn, 61); err == nil || !strings.Contains(err.Error(), "6.1") {
		t.Errorf("a GPU that is too old: %v", err)
	}
}

// Parameters lie where the kernel's declaration has them.
func TestArguments(t *testing.T) {
	r := &gpu.Reduction{Type: reduce.Float16, Op: reduce.Sum, Srcs: []gpu.Ptr{0x1006, 0x2006}, Dsts: []gpu.Ptr{0x3006}, Bytes: 100}
	b := Arguments(r)
	total := 0
	for _, n := range Params {
		total += n
	}
	if len(b) != total-Most || b[8] != 6 || b[9] != 0x20 || b[8*Most] != 6 || b[16*Most] != 2 || b[16*Most+4] != 1 {
		t.Errorf("%d bytes: % x", len(b), b[16*Most:])
	}
	// 10 bytes, 5 elements, up to 0x1010; then 5 vectors; then 5 elements.
	if head, body := r.Aligned(); head != 5 || body != 5 {
		t.Errorf("head %d, body %d", head, body)
	}
	r.Dsts[0]++
	if head, body := r.Aligned(); head != 0 || body != 0 {
		t.Errorf("addresses that lie differently: head %d, body %d", head, body)
	}
}
