package read

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// Expressions are compiled when first used, so that a wrong one would be found by whoever has such a log.
func TestEveryExpressionCompiles(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(x ast.Node) bool {
			call, ok := x.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "MustCompile" {
				return true
			}
			text, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			s, err := strconv.Unquote(text.Value)
			if err == nil {
				_, err = regexp.Compile(s)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			n++
			return true
		})
	}
	if n < 100 {
		t.Errorf("%d expressions found", n)
	}
}
