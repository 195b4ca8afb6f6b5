package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weft-fabric/weft/"

// The packages from the ground up. A package may import packages of its own line and of
// the lines above it, never of those below.
var floors = [][]string{
	{"unit", "internal/bounded", "internal/spell", "internal/release", "internal/lives"},
	{"internal/store"},
	{"reduce", "reduce/gen"}, // bytes in, bytes out; not a word, as it asks for the processor's features
	{"gpu"},
	{"gpu/ptx"},
	{"topo"},
	{"topo/hostlist", "topo/catalog"},
	{"topo/build", "topo/format", "topo/rings", "topo/paths", "topo/floor"},
	{"sched"},
	{"sched/step"},
	{"sched/verify", "sched/algo", "sched/msccl", "internal/reference", "internal/mutant", "internal/ibsim", "internal/libweft"},
	{"draw/svg"},
	{"draw"},
	{"cluster", "synth", "internal/manifest"},
	{"network"},
	{"network/emit"},
	{"network/check", "network/prove"},
	{"cost", "kv"},
	{"tune/table"},
	{"tune", "sim", "member"},
	{"work", "plan/kernel", "plan/schedule"},
	{"plan", "sim/failures"},
	{"sim/chakra"},
	{"sim/serve", "sim/train"},
	{"internal/cases", "member/simulation"},
	{"design", "doctor", "health", "doctor/read/internal/regexp"},
	{"doctor/read", "watch"},
	{"report", "watch/store", "internal/fault"},
	{"probe", "evidence", "launch", "launch/place", "web", "lab"},
	{"agent", "agent/cost", "watch/server", "watch/load"},
	{"transport", "transport/auth", "transport/meter"},
	{"transport/wait"},
	{"transport/affinity", "transport/rendezvous", "transport/witness", "internal/conform", "internal/nslab"},
	{"transport/internal/ring"},
	{"transport/tcp/internal/socket", "transport/tcp/internal/frame", "transport/tcp/internal/rails", "transport/tcp/internal/verbs"},
	{"transport/tcp/internal/buffer"},
	{"gpu/soft", "gpu/cuda"},
	{"transport/mem", "transport/shm", "transport/tcp", "transport/ucx", "internal/world"},
	{"transport/mixed", "transport/measure"},
	{"comm/calls", "comm/choice", "comm/internal/clock", "comm/internal/chunks", "comm/internal/plan", "comm/internal/blame"},
	{"comm/internal/board", "comm/internal/flat", "comm/flight"},
	{"comm/internal/group", "comm/internal/op", "comm/internal/pair"},
	{"comm/internal/shared", "comm/internal/script"},
	{"comm", "coord"},
	{"comm/device"},
	{"elastic", "elastic/observe"},
	{"elastic/node"},
	{"ckpt/blob", "ckpt/box", "ckpt/safetensors"},
	{"ckpt", "xfer"},
	{"xfer/measure", "xfer/directory", "kvcache"},
	{"kvcache/directory"},
	{"train/mat", "train/mat/gen", "train/data", "train/optim", "train/pipe"},
	{"train/model"},
	{"infer", "xfer/outside"},
	{"train"},
	{"train/checkpoint"},
	{"elastic/rank"},
	{"watch/drill"},
	{"up"},
	{"bench", "internal/differential", "capi"},
	{"bench/fit"},
	{"cli", "examples/allreduce", "examples/elastic", "examples/first", "examples/survive"},
	{".", "internal/dist"},
}

// TestEveryPackageHasALine in ARCHITECTURE.md, in the order of the floors.
func TestEveryPackageHasALine(t *testing.T) {
	page, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| floor | package | what it is |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	level := map[string]int{}
	for i, line := range floors {
		for _, p := range line {
			level[strings.ReplaceAll("/"+p, "/.", "/main")[1:]] = i
		}
	}
	last := 0
	for line := range strings.Lines(table) {
		f := strings.Split(line, "|")
		if len(f) != 5 || strings.HasPrefix(f[1], "---") {
			continue
		}
		p := strings.Trim(f[2], " `")
		at, known := level[p]
		switch {
		case !known:
			t.Errorf("ARCHITECTURE.md names %s, which arrows_test.go does not know, or names it twice", p)
		case at < last:
			t.Errorf("ARCHITECTURE.md has %s below packages that import it", p)
		case len(strings.TrimSpace(f[3])) < 3:
			t.Errorf("ARCHITECTURE.md does not say what %s is", p)
		}
		last = max(last, at)
		delete(level, p)
	}
	for p := range level {
		t.Errorf("%s has no line in ARCHITECTURE.md's table", p)
	}
}

// words are pure values: standard library and one another. Engines are pure
// too, but may use libraries of the field.
var (
	words   = []string{"unit", "topo", "sched", "draw"}
	shell   = []string{"watch/store", "watch/server", "watch/load", "watch/drill"} // what stands around package watch: disk, network, processes
	engines = []string{"cluster", "synth", "network", "design", "doctor", "health", "watch", "cost", "tune", "sim", "work", "plan", "kv", "internal/cases", "member", "comm/internal/plan", "comm/internal/blame", "comm/internal/chunks", "comm/internal/flat"}
)

// Forbidden arrows and the reason for each, for the packages that a prefix names.
var forbidden = []struct{ from, to, why string }{
	{"words", "os", "a value does not read files; pass the bytes in"},
	{"words", "net", "a value does not talk"},
	{"words", "log", "pure packages return what they found, the shell logs it"},
	{"words", "log/slog", "pure packages return what they found, the shell logs it"},
	{"engines", "os", "an engine's world is an argument"},
	{"engines", "net", "an engine's world is an argument"},
	{"engines", "log", "pure packages return what they found, the shell logs it"},
	{"engines", "log/slog", "pure packages return what they found, the shell logs it"},
}

// importsOf lists the imports of a package, and whether its code starts goroutines or asks for the time.
func importsOf(t *testing.T, dir string) (imports []string, impure []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			imports = append(imports, path)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.GoStmt:
				impure = append(impure, set.Position(x.Pos()).String()+" starts a goroutine")
			case *ast.SelectorExpr:
				if id, ok := x.X.(*ast.Ident); ok && id.Name == "time" && (x.Sel.Name == "Now" || x.Sel.Name == "Sleep" || x.Sel.Name == "Since") {
					impure = append(impure, set.Position(x.Pos()).String()+" asks for the time")
				}
			}
			return true
		})
	}
	slices.Sort(imports)
	return slices.Compact(imports), impure
}

func packages(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if n := d.Name(); n != "." && (n[0] == '.' || n == "testdata") {
			return fs.SkipDir
		}
		if found, _ := filepath.Glob(filepath.Join(path, "*.go")); len(found) > 0 {
			list = append(list, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func among(pkg string, list []string) bool {
	return slices.ContainsFunc(list, func(p string) bool { return pkg == p || strings.HasPrefix(pkg, p+"/") })
}

func TestArrowsGoDown(t *testing.T) {
	floor := map[string]int{}
	for i, names := range floors {
		for _, n := range names {
			floor[n] = i
		}
	}
	for _, pkg := range packages(t) {
		mine, known := floor[pkg]
		if !known {
			t.Errorf("package %q has no floor; give it one in arrows_test.go and in ARCHITECTURE.md", pkg)
			continue
		}
		imports, impure := importsOf(t, pkg)
		for _, path := range imports {
			if other, ours := strings.CutPrefix(path, module); ours {
				if theirs, ok := floor[other]; ok && theirs > mine {
					t.Errorf("%s imports %s: arrows go down only", pkg, other)
				}
				continue
			}
			if strings.Contains(strings.SplitN(path, "/", 2)[0], ".") && among(pkg, words) {
				t.Errorf("%s imports %s: words use the standard library alone", pkg, path)
			}
			for _, f := range forbidden {
				if f.to == path && (f.from == "words" && among(pkg, words) || f.from == "engines" && among(pkg, engines) && !among(pkg, shell)) {
					t.Errorf("%s imports %s: %s", pkg, path, f.why)
				}
			}
		}
		if among(pkg, words) || among(pkg, engines) && !among(pkg, shell) {
			for _, what := range impure {
				t.Errorf("%s; clock, order and world of a pure package are arguments", what)
			}
		}
	}
}

// A program that runs collectives needs no hardware catalogue and no topology.
// topo/hostlist is neither: it reads lists of names, such as Slurm's.
func TestArrowsOfCommReachNoTopology(t *testing.T) {
	seen := map[string]bool{}
	var follow func(pkg, by string)
	follow = func(pkg, by string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		if pkg != "topo/hostlist" && among(pkg, []string{"topo", "tune", "sim", "cluster"}) {
			t.Errorf("comm reaches %s: %s", pkg, by)
			return
		}
		imports, _ := importsOf(t, pkg)
		for _, path := range imports {
			if other, ours := strings.CutPrefix(path, module); ours {
				follow(other, by+" imports "+other)
			}
		}
	}
	follow("comm", "comm")
}

// The interpreter is the only pkg that computes what a step's expressions mean
// for a rank. Elsewhere an expression may be computed only where it cannot depend
// on one; each such place is named here with the reason.
func TestOnlyTheInterpreterComputesOperands(t *testing.T) {
	allowed := map[string]string{
		"sched/algo/tidy.go":     "folds expressions of numbers alone when a text is written",
		"sched/verify/rotate.go": "finds the scale of a block, which must be free of rank, channel and loops",
	}
	for _, pkg := range packages(t) {
		if pkg == "sched" || pkg == "sched/step" {
			continue
		}
		files, err := filepath.Glob(filepath.Join(pkg, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			computes := !strings.HasSuffix(name, "_test.go") && strings.Contains(string(src), ".Eval(")
			switch _, ok := allowed[name]; {
			case computes && !ok:
				t.Errorf("%s computes expressions of a program; that is sched/step's", name)
			case computes:
				delete(allowed, name)
			}
		}
	}
	for name := range allowed {
		t.Errorf("%s is allowed to compute expressions but does not; take it off the list", name)
	}
}
