package web_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/view/web"
)

const objectsPage = "../../docs/reference/http-objects.md"

// object is a struct of the package that is sent as JSON.
type object struct {
	name, doc string
	embeds    []string
	fields    []field
}

type field struct{ key, kind, doc string }

// objects reads the structs with JSON keys from the package's source: a key's meaning is the comment beside it.
func objects(t *testing.T) map[string]object {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]object{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			spec := gen.Specs[0].(*ast.TypeSpec)
			if body, ok := spec.Type.(*ast.StructType); ok {
				if o := objectOf(spec.Name.Name, gen.Doc.Text(), body); len(o.fields) > 0 {
					found[o.name] = o
				}
			}
		}
	}
	return found
}

func objectOf(name, doc string, body *ast.StructType) object {
	o := object{name: name, doc: strings.Join(strings.Fields(doc), " ")}
	for _, f := range body.Fields.List {
		if f.Tag == nil {
			if id, ok := f.Type.(*ast.Ident); ok && len(f.Names) == 0 {
				o.embeds = append(o.embeds, id.Name)
			}
			continue
		}
		key, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		if key != "" {
			o.fields = append(o.fields, field{key, kindOf(f.Type), strings.TrimSpace(f.Comment.Text())})
		}
	}
	return o
}

// kindOf says in JSON's words what a Go type becomes.
func kindOf(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return kindOf(x.X)
	case *ast.ArrayType:
		return "list of " + kindOf(x.Elt)
	case *ast.MapType:
		return "object of " + kindOf(x.Value)
	case *ast.SelectorExpr: // time.Time, time.Duration
		return map[string]string{"Time": "time"}[x.Sel.Name] + map[string]string{"Duration": "number"}[x.Sel.Name]
	case *ast.Ident:
		if kind := map[string]string{"string": "string", "bool": "boolean", "int": "number", "int64": "number", "uint64": "number",
			"float64": "number"}[x.Name]; kind != "" {
			return kind
		}
		return "[" + x.Name + "](#" + strings.ToLower(x.Name) + ")"
	}
	return "?"
}

const objectsHead = `# HTTP objects

Made by:

    go test ./view/web -run PageOfHTTP -update

The views, JSON objects and metrics of ` + "`weft up`" + `, from the source of package view/web. [HTTP and JSON](http.md) explains addresses, units and errors.

## Views

| path | content |
|---|---|
`

// objectsText is the page: the views and metrics that the server names, and every object of the package.
func objectsText(t *testing.T, h http.Handler, all map[string]object) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(objectsHead)
	for _, v := range served(t, h, "/api/")["views"].([]any) {
		v := v.(map[string]any)
		fmt.Fprintf(&b, "| `%s` | %s |\n", v["path"], v["text"])
	}
	b.WriteString("\n## Objects\n")
	for _, o := range slices.SortedFunc(mapValues(all), func(a, b object) int {
		return cmp.Compare(strings.ToLower(a.name), strings.ToLower(b.name))
	}) {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| key | type | meaning |\n|---|---|---|\n", o.name, o.doc)
		for _, name := range o.embeds {
			fmt.Fprintf(&b, "| | | all keys of [%s](#%s) |\n", name, strings.ToLower(name))
		}
		for _, f := range o.fields {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.key, f.kind, f.doc)
		}
	}
	b.WriteString("\n## Metrics\n\n| metric | type | meaning |\n|---|---|---|\n")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
	for _, m := range regexp.MustCompile(`(?m)^# HELP (\w+) (.*)\n# TYPE \w+ (\w+)$`).FindAllStringSubmatch(w.Body.String(), -1) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m[1], m[3], m[2])
	}
	return b.String()
}

func mapValues(m map[string]object) func(func(object) bool) {
	return func(yield func(object) bool) {
		for _, o := range m {
			if !yield(o) {
				return
			}
		}
	}
}

func served(t *testing.T, h http.Handler, path string) map[string]any {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost"+path, nil))
	var v map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return v
}

// unexplained lists keys of a JSON value that the page has no row for. Keys below "states" are data.
func unexplained(at string, v any, page string) (list []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if !strings.HasSuffix(at, "states") && !strings.Contains(page, "| `"+k+"` |") {
				list = append(list, at+"."+k)
			}
			list = append(list, unexplained(at+"."+k, x, page)...)
		}
	case []any:
		for _, x := range v {
			list = append(list, unexplained(at+"[]", x, page)...)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// The page of objects is what the package's source says, and explains every key that the real handler sends when it is
// fed with a run in which everything happens.
func TestPageOfHTTP(t *testing.T) {
	d := newDemo(8, 4, 2, 2, time.Now().Add(-time.Minute))
	for range 140 {
		d.next()
	}
	d.measure()
	d.Log(0, time.Now(), "a line that the rank has printed")
	d.Job(web.Job{Title: "weft up", Ranks: 8, Started: time.Now().Add(-time.Minute), Until: time.Now(), Ended: true, Watch: "/watch/",
		Studio: "/studio/"})
	h := d.Handler()
	all := objects(t)
	for _, o := range all {
		for _, f := range o.fields {
			if f.doc == "" || f.kind == "?" || f.kind == "" || o.doc == "" {
				t.Errorf("%s.%s (%s) or its struct has no comment, which would be its line of the page", o.name, f.key, f.kind)
			}
		}
	}
	want := objectsText(t, h, all)
	if *update {
		if err := os.WriteFile(objectsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if page, err := os.ReadFile(objectsPage); err != nil || string(page) != want {
		t.Errorf("%s is not what the source says (%v); go test ./view/web -run PageOfHTTP -update writes it", objectsPage, err)
	}
	for _, v := range served(t, h, "/api/")["views"].([]any) {
		path := v.(map[string]any)["path"].(string)
		for _, key := range append(unexplained("", served(t, h, path), want), unexplained("", served(t, h, "/api/ranks?id=0"), want)...) {
			t.Errorf("%s sends %s, which no object of the page has", path, key)
		}
	}
}
