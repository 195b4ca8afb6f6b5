package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A function whose cyclomatic complexity is above busy is hard to test path by path; one above tangled is hard to read at
// all. Both counts may only fall: lower the number when you simplify a function. Split where an idea ends, or turn
// branches into a table; a function cut in the middle is no easier to read.
const (
	busy     = 10
	tangled  = 40
	busyNow  = 864 // of 12616 functions
	tangles  = 0
	headroom = 10 // so far the counts may lie below the recorded ones before they must be lowered
)

// complexity counts the paths that branch off: if, for, case, && and ||, plus one. Function literals count for the
// function that holds them.
func complexity(fn *ast.FuncDecl) int {
	n := 1
	ast.Inspect(fn.Body, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if x.List != nil {
				n++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

// functions lists the complexity of every function that people write: neither tests nor generated code.
func functions(t *testing.T) (list []function) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				list = append(list, function{complexity(fn), filepath.ToSlash(path) + " " + fn.Name.Name})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list, func(a, b function) int { return cmp.Or(b.complexity-a.complexity, cmp.Compare(a.name, b.name)) })
	return list
}

type function struct {
	complexity int
	name       string
}

func TestComplexityOnlyFalls(t *testing.T) {
	all := functions(t)
	for _, limit := range []struct {
		above, recorded int
		name            string
	}{{busy, busyNow, "busyNow"}, {tangled, tangles, "tangles"}} {
		n, _ := slices.BinarySearchFunc(all, limit.above, func(f function, above int) int { return cmp.Compare(above, f.complexity) })
		t.Logf("%d of %d functions (%.1f%%) have a complexity above %d", n, len(all), 100*float64(n)/float64(len(all)), limit.above)
		switch {
		case n > limit.recorded:
			var list strings.Builder
			for _, f := range all[:min(n, 40)] {
				fmt.Fprintf(&list, "\n%5d  %s", f.complexity, f.name)
			}
			t.Errorf("%d functions have a complexity above %d, and at most %d may; simplify the new one%s", n, limit.above, limit.recorded, &list)
		case n < limit.recorded-headroom:
			t.Errorf("%d functions have a complexity above %d: well done; write %d for %s", n, limit.above, n, limit.name)
		}
	}
}

func TestComplexityCountsBranches(t *testing.T) {
	const source = `package p
func f(a, b bool, list []int, c chan int) {
	if a && b || !a {
		return
	}
	for range list {
		switch {
		case a:
		case b:
		default:
		}
	}
	select {
	case <-c:
	default:
	}
	func() { for a { } }()
}
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	// 1, if, &&, ||, for, two cases, one communication, and the loop of the literal.
	if got := complexity(file.Decls[0].(*ast.FuncDecl)); got != 9 {
		t.Errorf("complexity %d, want 9", got)
	}
}
