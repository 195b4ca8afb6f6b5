package draw

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/view/draw/svg"
)

func built(t *testing.T, name string, s algo.Spec) *sched.Program {
	t.Helper()
	a, err := algo.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Every algorithm can be drawn: valid XML, the same bytes twice, no text outside.
func TestEveryAlgorithmIsDrawn(t *testing.T) {
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			for _, n := range bounded.First(3, 2, 8, 13, 1, 16) {
				p, err := a.Program(algo.Spec{Op: op, Ranks: n})
				if err != nil {
					continue
				}
				var b, again bytes.Buffer
				if err := errors.Join(Program(&b, p), Program(&again, p)); err != nil {
					t.Fatal(a.Name, err)
				}
				if !bytes.Equal(b.Bytes(), again.Bytes()) {
					t.Errorf("%s: two pictures differ", a.Name)
				}
				for d := xml.NewDecoder(&b); ; {
					if _, err := d.Token(); err == io.EOF {
						break
					} else if err != nil {
						t.Fatal(a.Name, err)
					}
				}
				c, w, h, err := program(p)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range c.Texts() {
					if !l.Box.Inside(svg.Box{W: w, H: h}) {
						t.Errorf("%s %s, %d ranks: %q leaves the picture", a.Name, op, n, l.Text)
					}
				}
			}
		}
	}
}

// In a ring no two labels touch, and rows are the steps.
func TestRingPicture(t *testing.T) {
	p := built(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: 8})
	list, rows, err := arrows(p)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 8*14 || rows != 14 {
		t.Errorf("%d messages in %d rows, want 112 in 14", len(list), rows)
	}
	for _, a := range list {
		if a.adds != (a.row < 7) {
			t.Errorf("row %d from %d: added %v", a.row, a.from, a.adds)
		}
	}
	c, _, _, err := program(p)
	if err != nil {
		t.Fatal(err)
	}
	texts := c.Texts()
	for i := range texts {
		for j := range i {
			if texts[i].Box.Overlaps(texts[j].Box) {
				t.Errorf("%q and %q overlap", texts[i].Text, texts[j].Text)
			}
		}
	}
}

// Messages from scratch are named by the blocks they hold.
func TestScratchIsNamed(t *testing.T) {
	list, _, err := arrows(built(t, "bruck", algo.Spec{Op: sched.AllGather, Ranks: 8}))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if a.row == 1 && a.from == 3 && chunkLabel(a.chunks) != "3-4" {
			t.Errorf("rank 3 sends %s in the second step, want blocks 3 and 4", chunkLabel(a.chunks))
		}
	}
}

func TestTooLargeForAPicture(t *testing.T) {
	err := Program(io.Discard, built(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: 65}))
	if err == nil || !strings.Contains(err.Error(), "65 ranks; a picture can be read up to 64") {
		t.Error(err)
	}
	err = Program(io.Discard, built(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: 64, Pieces: 8}))
	if err == nil || !strings.Contains(err.Error(), "more than 512 rows") {
		t.Error(err)
	}
}
