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

// longest is how many lines of code a function may have. Data does not count: literals of values, texts over several lines, and
// declarations of flags.
const longest = 80

// codeLines counts the lines of a function that hold code.
func codeLines(set *token.FileSet, fn *ast.FuncDecl) int {
	line := func(p token.Pos) int { return set.Position(p).Line }
	first, last := line(fn.Pos()), line(fn.End())
	data := map[int]bool{}
	skip := func(n ast.Node, from, to int) {
		for l := line(n.Pos()) + from; l <= line(n.End())+to; l++ {
			data[l] = true
		}
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit: // a text over several lines
			skip(n, 1, 0)
		case *ast.CompositeLit:
			if !holdsCode(n) {
				skip(n, 1, 0)
			}
		case *ast.ExprStmt:
			if declaresFlag(n.X) {
				skip(n, 0, 0)
			}
		case *ast.AssignStmt:
			if len(n.Rhs) == 1 && declaresFlag(n.Rhs[0]) {
				skip(n, 0, 0)
			}
		}
		return true
	})
	return last - first + 1 - len(data)
}

// holdsCode says whether a literal has functions in it.
func holdsCode(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		_, is := n.(*ast.FuncLit)
		found = found || is
		return !found
	})
	return found
}

// declaresFlag knows f.StringVar(...) and its like, and what makes flags complete.
func declaresFlag(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	name := method.Sel.Name
	return strings.HasSuffix(name, "Var") || strings.HasSuffix(name, "VarP") || strings.Contains(name, "Flag") && name != "Flag" && name != "Flags"
}

// tooLong is how many functions are longer today. Lower the number when you have cut one into parts that have names; it never rises.
const tooLong = 79

func TestFunctionsAreShort(t *testing.T) {
	type long struct {
		lines int
		name  string
	}
	var all []long
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
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				if n := codeLines(set, fn); n > longest {
					all = append(all, long{n, fmt.Sprintf("%s %s", filepath.ToSlash(path), fn.Name.Name)})
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b long) int { return cmp.Or(b.lines-a.lines, cmp.Compare(a.name, b.name)) })
	var list strings.Builder
	for _, f := range all {
		fmt.Fprintf(&list, "\n%5d  %s", f.lines, f.name)
	}
	if len(all) > tooLong {
		t.Errorf("%d functions have more than %d lines of code, and at most %d may: cut the new one into parts that have names%s", len(all), longest, tooLong, &list)
	} else if len(all) < tooLong {
		t.Logf("only %d functions have more than %d lines of code: write %d for tooLong", len(all), longest, len(all))
	}
}

// What is counted: lines of code, and not those of data.
func TestCodeLines(t *testing.T) {
	const source = `package p
func f() {
	text := ` + "`one\ntwo\nthree`" + `
	list := []string{
		"a",
		"b",
	}
	flags.StringVar(&text, "text", "",
		"a text")
	call := []func(){
		func() { list = nil },
	}
	use(text, list, call)
}
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := codeLines(set, file.Decls[0].(*ast.FuncDecl)); n != 8 {
		t.Errorf("%d lines of code; want 8: func, text, list, three of call, use, end", n)
	}
}
