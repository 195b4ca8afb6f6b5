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

// areas are the folders at the root that hold Go code for users, from the ground up, and what each may import.
// The doc.go of an area and ARCHITECTURE.md repeat the list for people; TestAreasSayWhatTheyImport compares them.
var areas = []struct {
	name string
	may  []string
}{
	{"model", nil},
	{"collective", []string{"model"}},
	{"view", []string{"model", "collective"}},
	{"predict", []string{"model", "collective", "view"}},
	{"run", []string{"model", "collective", "view", "predict"}},
	{"fabric", []string{"model", "collective", "view", "predict", "run"}},
	{"move", []string{"model", "run"}},
	{"observe", []string{"model", "collective", "view", "run"}},
	{"app", []string{"model", "collective", "view", "predict", "run", "fabric", "move", "observe"}},
	{"capi", []string{"collective", "predict", "run", "move"}},
	{".", []string{"app"}},
}

// areaOf is the first folder of a package's path, or "." for the program itself.
func areaOf(pkg string) string {
	area, _, _ := strings.Cut(pkg, "/")
	return area
}

// floors orders the packages inside each area, from the ground up. A package may import packages of its own line and of
// the lines above it, never of those below. Areas keep circles out between folders; floors keep an area readable from
// one end to the other.
var floors = map[string][][]string{
	"model": {
		{"unit", "spell", "flow", "heap", "sets", "metrics"},
		{"topo"},
		{"topo/hostlist", "topo/catalog"},
		{"topo/build", "topo/format", "topo/rings", "topo/paths", "topo/floor"},
		{"cluster", "work"},
	},
	"collective": {
		{"sched"},
		{"step"},
		{"verify", "algo", "msccl"},
		{"synth"},
	},
	"view": {
		{"draw/svg", "report", "kit"},
		{"draw", "web", "scene"},
	},
	"predict": {
		{"cost", "tune/table", "internal/kernel", "internal/schedule"},
		{"tune", "sim"},
		{"plan", "sim/failures"},
		{"sim/chakra"},
		{"sim/serve", "sim/train"},
	},
	"run": {
		{"release", "fault", "lives", "retry", "turns"},
		{"reduce", "reduce/gen"}, // bytes in, bytes out
		{"gpu"},
		{"gpu/ptx"},
		{"launch", "launch/place"},
		{"transport", "transport/auth", "transport/match", "transport/meter"},
		{"transport/wait", "transport/record"},
		{"transport/affinity", "transport/rendezvous", "transport/witness"},
		{"transport/internal/ring"},
		{"transport/internal/socket", "transport/internal/frame", "transport/internal/rails", "transport/tcp/internal/verbs"},
		{"transport/internal/buffer"},
		{"gpu/soft", "gpu/cuda"},
		{"transport/mem", "transport/shm", "transport/wire", "transport/ucx"},
		{"transport/tcp"},
		{"transport/mixed", "transport/measure"},
		{"comm/internal/calls", "comm/choice", "comm/internal/clock", "comm/internal/chunks", "comm/internal/plan", "comm/internal/blame",
			"comm/internal/clique"},
		{"comm/internal/board", "comm/internal/flat", "comm/internal/flight"},
		{"comm/internal/group", "comm/internal/op", "comm/internal/pair"},
		{"comm/internal/shared", "comm/internal/script"},
		{"internal/member"},
		{"internal/member/simulation"},
		{"comm", "coord"},
		{"comm/device"},
		{"elastic", "elastic/internal/observe"},
		{"elastic/node"},
		{"ckpt/blob", "ckpt/internal/box", "ckpt/internal/safetensors"},
		{"ckpt"},
		{"train/internal/mat", "train/internal/mat/gen", "train/internal/data", "train/internal/optim", "train/pipe"},
		{"train/model"},
		{"train"},
		{"train/checkpoint"},
		{"elastic/rank"},
	},
	"fabric": {
		{"network"},
		{"network/emit"},
		{"network/check", "network/prove"},
		{"network/change"},
		{"design", "lab"},
	},
	"move": {
		{"kv", "xfer", "openai"},
		{"xfer/measure", "xfer/directory", "xfer/outside", "kvcache"},
		{"kvcache/directory", "infer", "route"},
	},
	"observe": {
		{"doctor", "internal/health", "doctor/read/internal/regexp"},
		{"doctor/read", "watch"},
		{"watch/internal/store", "probe", "evidence"},
		{"agent", "agent/cost", "watch/server", "watch/deliver", "watch/load"},
		{"watch/drill"},
	},
	"app": {
		{"internal/bench", "internal/studio/engine"},
		{"internal/bench/fit", "internal/studio", "internal/studio/wasm"},
		{"internal/up"},
		{"cli"},
	},
	"capi": {{""}},
	".":    {{""}},
}

// helpers and samples lie outside the areas: what tests use, and programs that show how weft is used.
// No area imports them; only tests import helpers.
var outside = []string{"internal", "examples"}

func path(area, pkg string) string {
	if pkg == "" {
		return area
	}
	return area + "/" + pkg
}

// TestEveryPackageHasALine in its area's table in ARCHITECTURE.md.
func TestEveryPackageHasALine(t *testing.T) {
	page, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	area := ""
	for line := range strings.Lines(string(page)) {
		if head, ok := strings.CutPrefix(line, "### "); ok {
			area = strings.Trim(strings.Fields(head)[0], "`/")
		}
		f := strings.Split(line, "|")
		if len(f) != 4 || !strings.HasPrefix(f[1], " `") {
			continue
		}
		name := strings.Trim(f[1], " `")
		if _, known := floors[area]; !known && !slices.Contains(outside, area) {
			continue
		}
		pkg := path(area, strings.TrimPrefix(name, "."))
		if listed[pkg] {
			t.Errorf("ARCHITECTURE.md names %s twice", pkg)
		}
		listed[pkg] = true
		if len(strings.TrimSpace(f[2])) < 3 {
			t.Errorf("ARCHITECTURE.md does not say what %s is", pkg)
		}
	}
	for _, pkg := range packages(t) {
		if pkg == "." || isArea(pkg) || strings.HasPrefix(pkg, "examples/") || strings.HasPrefix(pkg, "internal/dist/") {
			continue
		}
		if !listed[pkg] {
			t.Errorf("%s has no line in its area's table in ARCHITECTURE.md", pkg)
		}
		delete(listed, pkg)
	}
	for pkg := range listed {
		t.Errorf("ARCHITECTURE.md has a line for %s, which does not exist", pkg)
	}
}

// isArea tells the folder of an area, which holds nothing but doc.go, from a package.
func isArea(pkg string) bool {
	_, is := floors[pkg]
	return is && pkg != "capi" && pkg != "."
}

// TestAreasSayWhatTheyImport: the doc.go of an area ends with the areas it may import, as this test has them.
func TestAreasSayWhatTheyImport(t *testing.T) {
	for _, r := range areas {
		if !isArea(r.name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(r.name, "doc.go"))
		if err != nil {
			t.Error(err)
			continue
		}
		want := "// May import: " + strings.Join(r.may, ", ") + "."
		if r.may == nil {
			want = "// May import: no other area."
		}
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("%s/doc.go lacks the line %q", r.name, want)
		}
	}
}

// Pure packages read no file, no clock and no network and start no goroutine. Vocabularies use the standard library and
// one another alone; engines may use libraries of the field.
var (
	vocabularies = []string{"model/unit", "model/sets", "model/topo", "collective/sched", "collective/step", "collective/verify",
		"collective/algo", "collective/msccl", "view/draw", "view/scene", "view/kit"}
	shell = []string{"observe/watch/internal/store", "observe/watch/server", "observe/watch/deliver", "observe/watch/load",
		"observe/watch/drill"} // around package watch: disk, network, processes
	engines = []string{"model/cluster", "model/work", "collective/synth", "fabric/network", "fabric/design", "observe/doctor",
		"observe/internal/health", "observe/watch",
		"predict", "move/kv", "internal/cases", "run/internal/member", "run/transport/match", "run/comm/internal/plan", "run/comm/internal/blame",
		"run/comm/internal/chunks", "run/comm/internal/flat"}
)

// Imports that pure packages must not have, with the reason for each.
var forbidden = map[string]string{
	"os":       "a pure package gets its input as an argument",
	"net":      "a pure package does not talk to anyone",
	"log":      "a pure package returns what it found; its caller logs it",
	"log/slog": "a pure package returns what it found; its caller logs it",
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

// A package imports only areas that its area may import, and inside its area only what lies below it.
func TestArrowsGoDown(t *testing.T) {
	may := map[string][]string{}
	for _, r := range areas {
		may[r.name] = r.may
	}
	floor := map[string]int{}
	for area, lines := range floors {
		for i, names := range lines {
			for _, n := range names {
				floor[path(area, n)] = i
			}
		}
	}
	for _, pkg := range packages(t) {
		area := areaOf(pkg)
		if isArea(pkg) || slices.Contains(outside, area) {
			continue
		}
		if _, known := floor[pkg]; !known {
			t.Errorf("package %q has no floor; give it one in arrows_test.go and a line in ARCHITECTURE.md", pkg)
			continue
		}
		imports, _ := importsOf(t, pkg)
		for _, path := range imports {
			other, ours := strings.CutPrefix(path, module)
			switch theirs := areaOf(other); {
			case !ours:
			case theirs == area && floor[other] > floor[pkg]:
				t.Errorf("%s imports %s: arrows go down only", pkg, other)
			case theirs != area && !slices.Contains(may[area], theirs):
				t.Errorf("%s imports %s: %s may import %s only", pkg, other, area, strings.Join(may[area], ", "))
			}
		}
	}
}

// Every arrow that an area may have is used: the picture in ARCHITECTURE.md shows what is, not what could be.
func TestArrowsBetweenAreasAreUsed(t *testing.T) {
	used := map[[2]string]bool{}
	for _, pkg := range packages(t) {
		imports, _ := importsOf(t, pkg)
		for _, path := range imports {
			if other, ours := strings.CutPrefix(path, module); ours {
				used[[2]string{areaOf(pkg), areaOf(other)}] = true
			}
		}
	}
	for _, r := range areas {
		for _, to := range r.may {
			if !used[[2]string{r.name, to}] {
				t.Errorf("%s may import %s and does not: take the arrow out", r.name, to)
			}
		}
	}
}

func TestPurePackages(t *testing.T) {
	for _, pkg := range packages(t) {
		vocabulary := among(pkg, vocabularies)
		if !vocabulary && (!among(pkg, engines) || among(pkg, shell)) {
			continue
		}
		imports, impure := importsOf(t, pkg)
		for _, path := range imports {
			if strings.HasPrefix(path, module) {
				continue
			}
			if vocabulary && strings.Contains(strings.SplitN(path, "/", 2)[0], ".") {
				t.Errorf("%s imports %s: vocabularies use the standard library alone", pkg, path)
			}
			if why := forbidden[path]; why != "" {
				t.Errorf("%s imports %s: %s", pkg, path, why)
			}
		}
		for _, what := range impure {
			t.Errorf("%s; clock, order and world of a pure package are arguments", what)
		}
	}
}

// A program that runs collectives needs no hardware catalogue and no topology.
// model/topo/hostlist is neither: it reads lists of names, such as Slurm's.
func TestArrowsOfCommReachNoTopology(t *testing.T) {
	seen := map[string]bool{}
	var follow func(pkg, by string)
	follow = func(pkg, by string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		if pkg != "model/topo/hostlist" && among(pkg, []string{"model/topo", "model/cluster", "predict/tune", "predict/sim"}) {
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
	follow("run/comm", "run/comm")
}

// The interpreter is the only pkg that computes what a step's expressions mean
// for a rank. Elsewhere an expression may be computed only where it cannot depend
// on one; each such place is named here with the reason.
func TestOnlyTheInterpreterComputesOperands(t *testing.T) {
	allowed := map[string]string{
		"collective/algo/tidy.go":     "folds expressions of numbers alone when a text is written",
		"collective/verify/rotate.go": "finds the scale of a block, which must be free of rank, channel and loops",
	}
	for _, pkg := range packages(t) {
		if pkg == "collective/sched" || pkg == "collective/step" {
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
				t.Errorf("%s computes expressions of a program; that is collective/step's", name)
			case computes:
				delete(allowed, name)
			}
		}
	}
	for name := range allowed {
		t.Errorf("%s is allowed to compute expressions but does not; take it off the list", name)
	}
}
