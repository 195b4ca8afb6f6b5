package cluster

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/hostlist"
	"github.com/weft-fabric/weft/model/unit"
)

// reader collects what is wrong with a file, so that one run shows it all.
type reader struct {
	file string
	errs []error
}

// maxErrors is how many findings are shown.
const maxErrors = 10

func (r *reader) fail(line int, field, format string, args ...any) {
	r.errs = append(r.errs, &Error{r.file, line, field, fmt.Sprintf(format, args...)})
}

func (r *reader) err() error {
	if len(r.errs) > maxErrors {
		more := len(r.errs) - maxErrors
		return errors.Join(append(slices.Clone(r.errs[:maxErrors]), fmt.Errorf("%s: and %d more problems", r.file, more))...)
	}
	return errors.Join(r.errs...)
}

// fields reads the entries of one mapping by name. What was never asked for is
// unknown, and answered with the nearest name that was.
type fields struct {
	r     *reader
	path  string
	n     *node
	asked []string
}

// fields opens a mapping; nothing counts as an empty one.
func (r *reader) fields(path string, n *node) *fields {
	f := &fields{r: r, path: path, n: n}
	if n.kind != mapping {
		if n.kind != null {
			r.fail(n.line, path, "%s; it must be a mapping of fields", n.show())
		}
		f.n = &node{kind: mapping, line: n.line}
	}
	return f
}

// show says what stands there, for errors.
func (n *node) show() string {
	if n.kind == scalar {
		return fmt.Sprintf("%q", clip(n.text))
	}
	return kindNames[n.kind]
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

func (f *fields) at(name string) string {
	if f.path == "" {
		return name
	}
	return f.path + "." + name
}

// get finds an entry; nil if it is not there.
func (f *fields) get(name string) *node {
	f.asked = append(f.asked, name)
	for i := range f.n.keys {
		if f.n.keys[i].key == name {
			return f.n.keys[i].value
		}
	}
	return nil
}

func (f *fields) has(name string) bool { return f.get(name) != nil }

// line is where a field stands, or else the mapping.
func (f *fields) line(name string) int {
	if n := f.get(name); n != nil {
		return n.line
	}
	return f.n.line
}

func (f *fields) fail(name, format string, args ...any) {
	f.r.fail(f.line(name), f.at(name), format, args...)
}

// done reports the entries that nobody asked for.
func (f *fields) done() {
	slices.Sort(f.asked)
	known := slices.Compact(f.asked)
	for _, e := range f.n.keys {
		if !slices.Contains(known, e.key) {
			f.r.fail(e.line, f.at(clip(e.key)), "unknown field; %s", suggest(e.key, known))
		}
	}
}

// suggest names the nearest known word, or all of them.
func suggest(word string, known []string) string {
	all := "known: " + strings.Join(known, ", ")
	if nearest := spell.Nearest(word, known); nearest != "" {
		return fmt.Sprintf("did you mean %q? %s", nearest, all)
	}
	return all
}

func (f *fields) text(name string) string {
	n := f.get(name)
	if n == nil {
		return ""
	}
	if n.kind != scalar || n.text == "" {
		f.fail(name, "%s; it must be text", n.show())
		return ""
	}
	return n.text
}

// oneOf reads one of some words; the first is the default.
func (f *fields) oneOf(name string, known ...string) string {
	if !f.has(name) {
		return known[0]
	}
	s := f.text(name)
	if !slices.Contains(known, s) {
		f.fail(name, "%q; %s", clip(s), suggest(s, known))
		return known[0]
	}
	return s
}

func (f *fields) bool(name string) bool {
	return f.oneOf(name, "false", "true") == "true"
}

// integer reads a whole number between lo and hi; absent means 0.
func (f *fields) integer(name string, lo, hi int) int {
	n := f.get(name)
	if n == nil {
		return 0
	}
	return f.r.integer(f.at(name), n, lo, hi)
}

func (r *reader) integer(field string, n *node, lo, hi int) int {
	v, err := strconv.Atoi(strings.ReplaceAll(n.text, "_", ""))
	if n.kind != scalar || err != nil {
		r.fail(n.line, field, "%s; it must be a whole number", n.show())
		return lo
	}
	if v < lo || v > hi {
		r.fail(n.line, field, "%d; it must be between %d and %d", v, lo, hi)
		return lo
	}
	return v
}

// number reads a number at least lo; absent gives def. Suffixes K, M, B and T
// multiply by thousand, million, billion and trillion.
func (f *fields) number(name string, def, lo float64) float64 {
	n := f.get(name)
	if n == nil {
		return def
	}
	v, err := parseNumber(n.text)
	if n.kind != scalar || err != nil {
		f.fail(name, "%s; it must be a number such as 0.02, 175e9 or 175B", n.show())
		return def
	}
	if v < lo {
		f.fail(name, "%s; it must be at least %v", n.show(), lo)
		return def
	}
	return v
}

// parseNumber reads a number with K, M, B or T behind it.
func parseNumber(text string) (float64, error) {
	s := strings.ReplaceAll(strings.TrimSpace(text), "_", "")
	scale := 1.0
	if s != "" {
		if i := strings.IndexByte("KMBT", s[len(s)-1]); i >= 0 {
			scale, s = math.Pow(1000, float64(i+1)), strings.TrimSpace(s[:len(s)-1])
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v*scale, 0) {
		return 0, fmt.Errorf("%q is not a number such as 175e9 or 175B", clip(text))
	}
	return v * scale, nil
}

// ParseCount reads a count of parameters, at least one: 70B, 1.8T, 175e9.
func ParseCount(text string) (float64, error) {
	v, err := parseNumber(text)
	if err == nil && v < 1 {
		err = fmt.Errorf("%q; it must be at least 1, such as 70B", clip(text))
	}
	return v, err
}

// quantity reads a number with a unit by one of the parsers of unit.
func quantity[T any](f *fields, name string, into *T, parse func(string) (T, error)) {
	if !f.has(name) {
		return
	}
	v, err := parse(f.text(name))
	if err != nil {
		f.fail(name, "%v", err)
		return
	}
	*into = v
}

// seconds reads a time such as 1s or 500ms, and a plain number as seconds.
func (f *fields) seconds(name string, def float64) float64 {
	n := f.get(name)
	if n == nil {
		return def
	}
	if v, err := strconv.ParseFloat(n.text, 64); err == nil && v > 0 && !math.IsInf(v, 0) {
		return v
	}
	t, err := unit.ParseTime(n.text)
	if err != nil || n.kind != scalar || t <= 0 {
		f.fail(name, "%s; it must be a time such as 1s or 500ms", n.show())
		return def
	}
	return t.Seconds()
}

// names reads a hostlist, as text or as a list of texts.
func (f *fields) names(name string) []string {
	n := f.get(name)
	if n == nil {
		return nil
	}
	texts := []*node{n}
	if n.kind == list {
		texts = n.list
	}
	var all []string
	for _, t := range texts {
		if t.kind != scalar {
			f.r.fail(t.line, f.at(name), "%s; it must be a hostlist such as nic[0-7]", t.show())
			continue
		}
		more := f.r.expand(f.at(name), t.line, t.text)
		for _, x := range more {
			if len(texts) > 1 && slices.Contains(all, x) {
				f.r.fail(t.line, f.at(name), "%q comes twice; write it once", clip(x))
				return nil
			}
		}
		all = append(all, more...)
	}
	return all
}

// expand expands a hostlist and refuses a name that comes twice.
func (r *reader) expand(field string, line int, s string) []string {
	names, err := hostlist.Expand(s)
	if err != nil {
		r.fail(line, field, "%v", err)
		return nil
	}
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		if seen[n] {
			r.fail(line, field, "%q comes twice in %q", n, clip(s))
			return nil
		}
		seen[n] = true
	}
	return names
}

// ratio reads an oversubscription: 2:1, 2 or 1.5.
func (f *fields) ratio(name string) build.Ratio {
	n := f.get(name)
	if n == nil {
		return build.Ratio{}
	}
	r, err := parseRatio(n.text)
	if n.kind != scalar || err != nil || r.Down < 1 || r.Up < 1 || r.Down > 10000 || r.Up > 10000 {
		f.fail(name, "%s; it must be a ratio of ports down to ports up, such as 2:1", n.show())
		return build.Ratio{}
	}
	return r
}

func parseRatio(text string) (r build.Ratio, err error) {
	down, up, pair := strings.Cut(text, ":")
	d, err := strconv.Atoi(strings.TrimSpace(down))
	switch {
	case pair && err == nil:
		r.Down = d
		r.Up, err = strconv.Atoi(strings.TrimSpace(up))
		return r, err
	case pair || err == nil:
		return build.Ratio{Down: d, Up: 1}, err
	}
	return decimalRatio(down)
}

// decimalRatio makes a ratio of whole numbers of a fraction with up to three decimals.
func decimalRatio(text string) (build.Ratio, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return build.Ratio{}, err
	}
	if !(v > 0 && v < 1000) {
		return build.Ratio{}, strconv.ErrRange
	}
	d, u := int(math.Round(v*1000)), 1000
	for _, p := range []int{2, 2, 2, 5, 5, 5} {
		if d%p == 0 && u%p == 0 {
			d, u = d/p, u/p
		}
	}
	return build.Ratio{Down: d, Up: u}, nil
}
