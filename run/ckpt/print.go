package ckpt

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/ckpt/internal/box"
)

// Print writes a checkpoint for people: what it is, its files, and its tensors with
// the way they are split.
func (m *Manifest) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	line("step", m.Step)
	line("epoch", m.Epoch)
	if m.Run != "" {
		line("run", m.Run)
	}
	line("ranks", m.World)
	if m.Emergency {
		line("emergency", "yes")
	}
	for _, k := range slices.Sorted(maps.Keys(m.Layout)) {
		line("layout "+k, m.Layout[k])
	}
	line("data position", m.Data)
	for _, k := range slices.Sorted(maps.Keys(m.Extra)) {
		line("metadata "+k, m.Extra[k])
	}
	if !m.Created.IsZero() {
		line("created", m.Created.Format("2006-01-02T15:04:05.000Z07:00"))
	}
	line("tensors", fmt.Sprintf("%d, %v; %v in files", len(m.Tensors), unit.Bytes(m.Bytes()), unit.Bytes(m.Stored())))
	if m.foreign {
		line("checksums", "none: files of other programs")
	}
	fmt.Fprintf(w, "\nfile\tsize\theader\tchecksum of it\trandom states\n")
	for _, f := range m.Files {
		states := strings.Join(slices.Sorted(maps.Keys(f.Random)), ", ")
		hash := f.Hash.String()
		if m.foreign {
			hash = "-"
		}
		fmt.Fprintf(w, "%s\t%v\t%v\t%s\t%s\n", f.Name, unit.Bytes(f.Size), unit.Bytes(f.Head), hash, states)
	}
	fmt.Fprintf(w, "\ntensor\ttype\tshape\tsplit\n")
	for _, t := range m.Tensors {
		fmt.Fprintf(w, "%s\t%s\t%v\t%s\n", t.Name, t.Type, t.Shape, t.split())
	}
	return w.Flush()
}

// split says in words how a tensor's parts divide it.
func (t Info) split() string {
	distinct := []box.Region{}
	seen := map[string]bool{}
	for _, r := range t.regions() {
		if key := fmt.Sprint(r.Offset, r.Shape); !seen[key] {
			seen[key] = true
			distinct = append(distinct, r)
		}
	}
	what := "mixed"
	switch flat, dims := t.cuts(distinct); {
	case len(distinct) == 1 && slices.Equal(distinct[0].Shape, t.Shape):
		what = "whole"
	case flat == len(distinct):
		what = fmt.Sprintf("%d ranges", flat)
	case flat == 0 && len(dims) > 0:
		what = fmt.Sprintf("%d parts of dimension", len(distinct))
		if len(dims) > 1 {
			what += "s"
		}
		what += " " + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(dims)), ","), "[]")
	}
	if n := len(t.Parts) - len(distinct); n > 0 {
		what += fmt.Sprintf(", %d copies", n)
	}
	return what
}

// cuts counts the parts that are ranges and gives the dimensions others are cut in.
func (t Info) cuts(parts []box.Region) (flat int, dims []int) {
	for _, r := range parts {
		if r.Flat() {
			flat++
			continue
		}
		for d := range t.Shape {
			if r.Shape[d] != t.Shape[d] && !slices.Contains(dims, d) {
				dims = append(dims, d)
			}
		}
	}
	slices.Sort(dims)
	return flat, dims
}
