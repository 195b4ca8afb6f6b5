package sched

import (
	"strings"
	"sync"
	"testing"
)

const ringText = `weft 1
name ring
op all-reduce
ranks 8
chunks n
slots 2
channels 1:
  send in[(r-1)%n] to (r+1)%n
  repeat j < n-2:
    recv-reduce-send in[(r-2-j)%n] from (r-1)%n to (r+1)%n
  recv-reduce-copy-send in[r] -> out[r] from (r-1)%n to (r+1)%n
  repeat j < n-2:
    recv-copy-send -> out[(r-1-j)%n] from (r-1)%n to (r+1)%n
  recv -> out[(r+1)%n] from (r-1)%n
`

func TestTextRoundTrips(t *testing.T) {
	p, err := Parse(ringText)
	if err != nil {
		t.Fatal(err)
	}
	if p.String() != ringText {
		t.Errorf("printed differently:\n%s", p)
	}
}

// Ranks that are goroutines of one process may be given one program.
func TestCheckedAtOnce(t *testing.T) {
	p, err := Parse(ringText)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := p.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestExpressions(t *testing.T) {
	s := &scope{names: []string{"r", "n", "c"}}
	env := Env{3, 8, 1}
	for text, want := range map[string]int64{
		"r+1": 4, "(r-5)%n": 6, "r-5": -2, "(r-5)/4": -1, "r^1": 2, "1<<r": 8, "r*2+c": 7, "r-1-1": 1, "r-(1-1)": 3,
		"r < n && c == 1": 1, "r == 1 || c != 1": 0, "(r+1)%n*2+c": 9, "r <= 3": 1, "2+3*4%5": 4,
		"r min c": 1, "n-(r min 2)": 6, "r min 7+1": 3, "(r min 2)+1": 3, "n min r min c": 1, "9 min 1<<r": 8, "2*(r min n) < 7": 1,
		"r > 2": 1, "r >= n": 0, "n > r+1 && c >= 1": 1, "r > 2 > 0": 1, "2*r > n-1 == 0": 1,
	} {
		e := &exprParser{text: text, scope: s}
		x, err := e.expr(0)
		if err != nil {
			t.Fatal(text, err)
		}
		if got := x.Eval(&env); got != want {
			t.Errorf("%s = %d, want %d (read as %s)", text, got, want, x)
		}
		again := &exprParser{text: x.String(), scope: s}
		if y, err := again.expr(0); err != nil || y.String() != x.String() || y.Eval(&env) != want {
			t.Errorf("%s prints as %s, which does not mean the same: %v", text, x, err)
		}
	}
}

func TestBadTextNamesTheLine(t *testing.T) {
	for edit, want := range map[[2]string]string{
		{"op all-reduce", "op all-produce"}:             `line 3: unknown collective "all-produce"; did you mean "all-reduce"? known: all-reduce`,
		{"ranks 8", "ranks 0"}:                          `line 4: ranks "0": want a number from 1`,
		{"repeat j < n-2:", "repeat r < n-2:"}:          `line 9: name "r" is taken`,
		{"in[r] ->", "in[q] ->"}:                        `line 11: recv-reduce-copy-send: unknown name "q"; known here: r, n, c`,
		{"-> out[r]", "-> in[r]"}:                       "writes to in",
		{"chunks n\n", ""}:                              "how many chunks",
		{"  send in", "   send in"}:                     "indented",
		{"weft 1", "weft 2"}:                            `line 1: a program starts with "weft 1"`,
		{"to (r+1)%n\n  repeat", "to (r+1%n\n  repeat"}: "closing parenthesis",
		{"repeat j",
			"for j"}: `unknown step "for"; known: send, recv, recv-reduce, recv-copy-send, recv-reduce-send, recv-reduce-copy-send, copy, reduce, wait; a loop is written "repeat NAME < COUNT:"`,
		{"slots 2", "slits 2"}:                   `line 6: unknown word "slits"`,
		{"from (r-1)%n\n", "from (r-1)%n now\n"}: "left over; want ",
	} {
		text := strings.Replace(ringText, edit[0], edit[1], 1)
		if text == ringText {
			t.Fatalf("%q is not in the text", edit[0])
		}
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", edit[1], err, want)
		}
	}
}

const tableText = `weft 1
name star
op broadcast
ranks 3
table parent: 0 2 0
table kid: 2 1
chunks 1
slots 1
channels 1:
  if r == 0:
    copy in[0] -> out[0]
    send in[0] to kid[r]
  else:
    recv -> out[0] from parent[r]
    if r == 2:
      send out[0] to kid[kid[r-2]-1]
`

func TestTables(t *testing.T) {
	p, err := Parse(tableText)
	if err != nil {
		t.Fatal(err)
	}
	if p.String() != tableText {
		t.Errorf("printed differently:\n%s", p)
	}
	to := p.Groups[0].Body[0].If.Else[1].If.Then[0].Step.To
	env := p.Env(2, 0)
	if v := to.Eval(&env); v != 1 || env.Undefined() != "" || !to.Uses(RankSlot) || to.Uses(ChannelSlot) || to.Affine(RankSlot) {
		t.Errorf("%s at rank 2 is %d (%s)", to, v, env.Undefined())
	}
	env = p.Env(5, 0)
	if to.Eval(&env); env.Undefined() != "looks outside of a table" {
		t.Errorf("entry 3 of a table of two: %q", env.Undefined())
	}
	for edit, want := range map[[2]string]string{
		{"kid: 2 1", "kid: 2 x"}:        `line 6: table kid "x": want a number`,
		{"kid: 2 1", "kid:"}:            "line 6: table kid is empty",
		{"table kid:", "table parent:"}: "line 6: table parent: the name is taken",
		{"table kid:", "table in:"}:     "line 6: table in: the name is taken",
		{"table kid:", "table 2:"}:      "want table NAME",
		{"to kid[r]", "to kids[r]"}:     `line 12: send: no table "kids"; known: parent, kid`,
		{"to kid[r]", "to kid[r"}:       "closing bracket",
		{"to kid[r]", "to kid"}:         `unknown name "kid"`,
	} {
		text := strings.Replace(tableText, edit[0], edit[1], 1)
		if text == tableText {
			t.Fatalf("%q is not in the text", edit[0])
		}
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", edit[1], err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ringText)
	f.Add(tableText)
	f.Add("weft 1\nname x\nop barrier\nranks 2\nlet k = 3\nchunks k\nscratch 1\norder 0: 1 0\nchannels 2:\n  if r == 0:\n    send in[0 +: k] to 1\n  else:\n    wait channel 0 done c min 3\n")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		q, err := Parse(p.String())
		if err != nil || q.String() != p.String() {
			t.Fatalf("does not round-trip: %v\n%s", err, p)
		}
	})
}
