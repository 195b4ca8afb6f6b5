package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	source "golang.org/x/tools/go/packages"
)

// On macOS everything works that runs no ranks, and Linux runs on arm64, too: for both the program and all that it uses is
// type-checked, and what is declared without a body has its assembly. That finds what a file of one platform alone has; make
// cross compiles and links, for twenty times as much of a processor. Of functions of others only the declarations are read.
func TestOtherPlatforms(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s of a processor")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for _, platform := range []string{"darwin/arm64", "linux/arm64"} {
		system, machine, _ := strings.Cut(platform, "/")
		load := source.Config{
			Mode: source.NeedName | source.NeedFiles | source.NeedCompiledGoFiles | source.NeedImports | source.NeedDeps |
				source.NeedModule | source.NeedTypes | source.NeedSyntax | source.NeedTypesSizes,
			Env:       append(os.Environ(), "GOOS="+system, "GOARCH="+machine, "CGO_ENABLED=0"),
			ParseFile: declarations(t),
		}
		list, err := source.Load(&load, ".")
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		source.Visit(list, nil, func(p *source.Package) {
			seen++
			own := p.Module != nil && p.Module.Main
			for _, e := range p.Errors {
				if own || e.Kind != source.TypeError { // bodies are missing from others
					t.Errorf("%s: %v", platform, e)
				}
			}
			if !own {
				return
			}
			for _, name := range bodiless(p.Syntax) {
				if !assembled(t, p.OtherFiles, name) {
					t.Errorf("%s: %s.%s has no body and no assembly", platform, p.PkgPath, name)
				}
			}
		})
		if seen < 400 {
			t.Errorf("%s: %d packages were read; the program has more", platform, seen)
		}
	}
}

// declarations parses files, and those of others without the bodies of their functions.
func declarations(t *testing.T) func(*token.FileSet, string, []byte) (*ast.File, error) {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return func(set *token.FileSet, name string, text []byte) (*ast.File, error) {
		f, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution|parser.ParseComments)
		if f != nil && !strings.HasPrefix(name, root+string(filepath.Separator)) {
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok {
					fn.Body = nil
				}
			}
		}
		return f, err
	}
}

// bodiless lists the functions that are declared without a body and are not linked to another by name.
func bodiless(files []*ast.File) (names []string) {
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Body == nil && (fn.Doc == nil || !linkname.MatchString(fn.Doc.List[len(fn.Doc.List)-1].Text)) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

var linkname = regexp.MustCompile(`^//go:linkname `)

// assembled reports whether one of the assembly files defines a function.
func assembled(t *testing.T, files []string, name string) bool {
	text := regexp.MustCompile(`(?m)^TEXT\s+·` + regexp.QuoteMeta(name) + `(<ABIInternal>)?\(SB\)`)
	for _, f := range files {
		if filepath.Ext(f) != ".s" {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if text.Match(b) {
			return true
		}
	}
	return false
}
