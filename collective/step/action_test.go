package step_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// words is a memory whose reduction is not commutative.
type words map[step.Chunks]string

func (w words) Load(_ sched.Rank, _ *step.Action, c step.Chunks) (string, error) { return w[c], nil }
func (w words) Reduce(_ sched.Rank, _ *step.Action, a, b string) (string, error) {
	return "(" + a + "+" + b + ")", nil
}
func (w words) Store(_ sched.Rank, _ *step.Action, c step.Chunks, v string) error {
	w[c] = v
	return nil
}

// The operands of every operation, and their order.
func TestEffects(t *testing.T) {
	src, dst := step.Chunks{Buf: sched.In, Count: 1}, step.Chunks{Buf: sched.Out, Count: 1}
	for op, want := range map[sched.Op][2]string{ // what is stored, and what is sent
		sched.Send: {"d", "s"}, sched.Recv: {"m", ""}, sched.RecvReduce: {"(s+m)", ""}, sched.RecvSend: {"m", "m"},
		sched.RecvReduceSend: {"d", "(s+m)"}, sched.RecvReduceCopySend: {"(s+m)", "(s+m)"}, sched.Copy: {"s", ""},
		sched.LocalReduce: {"(s+d)", ""}, sched.Wait: {"d", ""},
	} {
		w := words{src: "s", dst: "d"}
		sent, err := step.Do[string](w, 0, &step.Action{Op: op, Src: src, Dst: dst, Count: 1}, "m")
		if err != nil || w[dst] != want[0] || sent != want[1] || w[src] != "s" {
			t.Errorf("%s stores %s and sends %s, %v; want %v", op, w[dst], sent, err, want)
		}
	}
}

// Steps that no world can carry out are faults that name the line.
func TestFaultsNameTheLine(t *testing.T) {
	const head = "weft 1\nname f\nop all-reduce\nranks 2\nlet z = 0\nchunks 4\nscratch 8\nslots 1\nchannels 1:\n"
	for text, want := range map[string]string{
		"  copy tmp[0 +: 4] -> tmp[1 +: 4]":                 "(line 10: copy tmp[0 +: 4] -> tmp[1 +: 4]): it reads tmp[0 +: 4] and stores tmp[1 +: 4], which overlap",
		"  recv-reduce tmp[2 +: 4] -> tmp[0 +: 4] from 1-r": "which overlap",
		"  reduce tmp[1 +: 2] -> tmp[0 +: 2]":               "which overlap",
		"  send in[r/z] to 1-r":                             "(line 10: send in[r/z] to 1-r): an expression of it divides by zero",
		"  send in[0] to r%z":                               "divides by zero",
		"  repeat i < 3/z:\n    copy in[0] -> out[0]":       "(line 10: repeat i < 3/z): an expression of it divides by zero",
		"  if 3/z:\n    copy in[0] -> out[0]":               "(line 10: 3/z): an expression of it divides by zero",
		"  send in[1<<63] to 1-r":                           "shifts by less than 0 or more than 62 bits",
		"  copy in[0 +: 1<<62] -> out[1 +: 1<<62]":          "outside the 4 chunks",
		"  wait channel 0 done 1/z":                         "divides by zero",
	} {
		err := step.Run(parse(t, head+text+"\n"), func(sched.Rank, *step.Action, int) (int, error) { return 0, nil })
		if f := (*step.Fault)(nil); !errors.As(err, &f) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	// The same chunks, neighbours, and a division that a condition guards are fine.
	fine := head + "  copy tmp[0 +: 4] -> tmp[4 +: 4]\n  copy tmp[0 +: 4] -> tmp[0 +: 4]\n  if z != 0 && 3/z:\n    copy tmp[0] -> tmp[1]\n"
	if err := step.Run(parse(t, fine), func(sched.Rank, *step.Action, int) (int, error) { return 0, nil }); err != nil {
		t.Error(err)
	}
}

// Count agrees with what machines do, and does not go through loops to find it out.
func TestCount(t *testing.T) {
	const head = "weft 1\nname c\nop all-reduce\nranks 4\nchunks 1\nslots 1\nchannels 3:\n"
	for _, c := range []struct {
		text string
		n    int64
	}{
		{"  copy in[0] -> out[0]\n", 12},
		{"  repeat i < 5:\n    copy in[0] -> out[0]\n", 12 * 11},
		{"  repeat i < r:\n    repeat j < i:\n      copy in[0] -> out[0]\n", 0},
		{"  if r == 2:\n    copy in[0] -> out[0]\n", 3 * 5},
	} {
		p := parse(t, head+c.text)
		ranks := []sched.Rank{0, 1, 2, 3}
		got, why := step.Compile(p).Count(ranks, 1<<40)
		if strings.Contains(c.text, "j < i") { // counted by hand below
			c.n = 0
			for r := range int64(4) {
				c.n += 1 + r // the loop and its rounds
				for i := range r {
					c.n += 1 + 2*i
				}
			}
			c.n *= 3
		}
		if got != c.n || why != "" {
			t.Errorf("%s: %d, %q; want %d", c.text, got, why, c.n)
		}
	}
	p := parse(t, head+"  repeat i < 1099511627776:\n    repeat j < 1099511627776:\n      if i < j:\n        copy in[0] -> out[0]\n")
	if n, why := step.Compile(p).Count([]sched.Rank{0, 1}, 1000); n != 1001 ||
		!strings.Contains(why, "line 8: repeat i < 1099511627776, 1099511627776 rounds") {
		t.Errorf("%d, %q", n, why)
	}
}

// Needs finds the least number of slots with which a program ends.
func TestNeeds(t *testing.T) {
	p := parse(t,
		"weft 1\nname d\nop all-reduce\nranks 2\nchunks 20\nslots 64\nchannels 1:\n  repeat i < 20:\n    send in[i] to 1-r\n  repeat i < 20:\n    recv-reduce in[i] -> out[i] from 1-r\n")
	if n, err := step.Needs(p, 1); n != 20 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	p.Slots = 19
	if n, err := step.Needs(p, 1); err == nil {
		t.Errorf("%d slots though it does not end with %d", n, p.Slots)
	}
}
