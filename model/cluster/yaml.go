package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of a cluster file. The largest example, 131,072 GPUs, is under 1 KiB: a
// file past these is not one that somebody wrote. The YAML library takes time
// and memory by the square of the number of entries: 60,000 took 25 s and 14 GB,
// 10,000 under a second (November 2026).
const (
	maxFile  = 1 << 20 // bytes
	maxLine  = 4096    // bytes
	maxDepth = 32      // nesting
	maxMarks = 20_000  // line ends, commas, and colons with a space behind
	maxNodes = 100_000
)

// Error is what is wrong with one place of a file.
type Error struct {
	File  string
	Line  int    // from 1; 0 if the whole file is meant
	Field string // "fabric.leaf.model"; empty if none
	Msg   string // with the value, and the known values or the fix
}

func (e *Error) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	if e.Field != "" {
		where += ": " + e.Field
	}
	return where + ": " + e.Msg
}

type kind uint8

const (
	null kind = iota
	scalar
	list
	mapping
)

var kindNames = [...]string{"nothing", "a value", "a list", "a mapping"}

// node is a YAML value with its line. Keys keep their order and are unique.
type node struct {
	kind kind
	line int
	text string // of a scalar, as written
	list []*node
	keys []entry
}

type entry struct {
	key   string
	line  int
	value *node
}

// readTree turns a file into nodes. It refuses what would take long or much
// before the YAML library sees it: noise, depth, long lines; and afterwards the
// parts of YAML that a cluster file has no use for: anchors, aliases, tags and
// several documents.
func readTree(file string, data []byte) (*node, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // the mark that some editors put before a text
	if err := screen(file, data); err != nil {
		return nil, err
	}
	doc, err := safeParse(data)
	if err != nil {
		return nil, syntaxError(file, err)
	}
	t := tree{file: file}
	var root *node
	for _, d := range doc.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			return nil, &Error{file, line(d.Body), "", "a second document begins here; a cluster is one document"}
		}
		if root, err = t.node(d.Body, 0); err != nil {
			return nil, err
		}
	}
	if root == nil {
		return nil, &Error{file, 1, "", "the file is empty; it needs at least name and hosts, or preset"}
	}
	return root, nil
}

// safeParse turns a panic of the YAML library, which some malformed inputs
// cause, into an error.
func safeParse(data []byte) (f *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, errors.New("malformed YAML")
		}
	}()
	return parser.ParseBytes(data, 0)
}

// screen looks at the bytes alone.
func screen(file string, data []byte) error {
	if len(data) > maxFile {
		return &Error{file, 0, "", fmt.Sprintf("the file has %d bytes; a cluster file has at most %d", len(data), maxFile)}
	}
	depth, number, marks := 0, 0, 0
	for text := range bytes.Lines(data) {
		number++
		if len(text) > maxLine {
			return &Error{file, number, "", fmt.Sprintf("the line has %d bytes; at most %d are read", len(text), maxLine)}
		}
		if !utf8.Valid(text) {
			return &Error{file, number, "", "the line is not UTF-8 text; a cluster file is YAML"}
		}
		if marks += 1 + bytes.Count(text, []byte(",")) + bytes.Count(text, []byte(": ")); marks > maxMarks {
			return &Error{file, number, "", fmt.Sprintf("more than %d lines and entries; write hostlists such as n[0-127]", maxMarks)}
		}
		dashes := 0
		for _, c := range text {
			switch {
			case c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0x7f:
				return &Error{file, number, "", fmt.Sprintf("control character 0x%02x; a cluster file is YAML text", c)}
			case c == '[' || c == '{':
				depth++
			case c == ']' || c == '}':
				depth = max(depth-1, 0)
			}
			if c == '-' || c == '?' || c == '&' || c == '!' || c == '*' {
				dashes++
			}
		}
		if depth > maxDepth || dashes > 512 {
			return &Error{file, number, "", fmt.Sprintf("nested more than %d deep", maxDepth)}
		}
	}
	return nil
}

func syntaxError(file string, err error) error {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil && y.GetToken().Position != nil {
		return &Error{file, y.GetToken().Position.Line, "", "not YAML: " + y.GetMessage()}
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return &Error{file, 0, "", "not YAML: " + first}
}

func line(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

type tree struct {
	file  string
	nodes int
}

// node turns a YAML value into ours, with its line. Size and depth are limited, as files come from anywhere.
func (t *tree) node(n ast.Node, depth int) (*node, error) {
	if t.nodes++; t.nodes > maxNodes {
		return nil, &Error{t.file, line(n), "", fmt.Sprintf("more than %d values", maxNodes)}
	}
	if depth > maxDepth {
		return nil, &Error{t.file, line(n), "", fmt.Sprintf("nested more than %d deep", maxDepth)}
	}
	out := &node{line: line(n)}
	switch v := n.(type) {
	case *ast.NullNode:
		return out, nil
	case *ast.StringNode:
		out.kind, out.text = scalar, v.Value
	case *ast.LiteralNode:
		out.kind, out.text = scalar, v.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		out.kind, out.text = scalar, n.GetToken().Value
	case *ast.SequenceNode:
		out.kind = list
		for _, e := range v.Values {
			item, err := t.node(e, depth+1)
			if err != nil {
				return nil, err
			}
			out.list = append(out.list, item)
		}
	case *ast.MappingNode:
		out.kind = mapping
		lines := make(map[string]int, len(v.Values))
		for _, e := range v.Values {
			if err := t.entry(out, e, lines, depth); err != nil {
				return nil, err
			}
		}
	case *ast.MappingValueNode:
		out.kind = mapping
		if err := t.entry(out, v, map[string]int{}, depth); err != nil {
			return nil, err
		}
	case *ast.AnchorNode, *ast.AliasNode:
		return nil, &Error{t.file, out.line, "", "anchors and aliases are not read; write hostlists and defaults instead"}
	case *ast.TagNode:
		return nil, &Error{t.file, out.line, "", fmt.Sprintf("tag %q; a cluster file has no tags", v.Start.Value)}
	default:
		return nil, &Error{t.file, out.line, "", fmt.Sprintf("unexpected %s", n.Type())}
	}
	return out, nil
}

// entry adds one entry to a mapping; lines holds where its keys stand so far.
func (t *tree) entry(out *node, e *ast.MappingValueNode, lines map[string]int, depth int) error {
	var key string
	switch k := e.Key.(type) {
	case *ast.StringNode:
		key = k.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		key = e.Key.GetToken().Value
	default:
		return &Error{t.file, line(e), "", "a key that is not plain text"}
	}
	number := keyLine(e.Key.GetToken())
	if other, twice := lines[key]; twice {
		return &Error{t.file, number, key, fmt.Sprintf("written twice, on lines %d and %d", other, number)}
	}
	lines[key] = number
	value, err := t.node(e.Value, depth+1)
	if err != nil {
		return err
	}
	if value.line == 0 || value.kind == mapping {
		value.line = number
	}
	out.keys = append(out.keys, entry{key, number, value})
	return nil
}

func keyLine(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 0
	}
	return t.Position.Line
}
