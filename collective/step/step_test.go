package step_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

func parse(t testing.TB, text string) *sched.Program {
	t.Helper()
	p, err := sched.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const ring = `weft 1
name ring
op all-gather
ranks 3
chunks n
slots 2
channels 1:
  copy in[0] -> out[r]
  send in[0] to (r+1)%n
  repeat j < n-2:
    recv-copy-send -> out[(r-1-j)%n] from (r-1)%n to (r+1)%n
  recv -> out[(r+1)%n] from (r-1)%n
`

// A machine hands out every action once, the next one after Complete.
func TestActionsInOrder(t *testing.T) {
	m := step.New(parse(t, ring), 1)
	var got []string
	for !m.Done() {
		ready := m.Ready(nil)
		if again := m.Ready(nil); len(again) != 0 {
			t.Fatalf("handed out again: %v", again)
		}
		for i := range ready {
			got = append(got, ready[i].String())
			m.Complete(ready[i].Channel)
		}
		if len(ready) == 0 && !m.Done() {
			t.Fatal("nothing is ready and it is not done")
		}
	}
	want := []string{"copy in[0] -> out[1]", "send in[0] to 2", "recv-copy-send -> out[0] from 0 to 2", "recv -> out[2] from 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Channels are independent until a Wait; a Wait is an action of its own.
func TestWait(t *testing.T) {
	p := parse(t,
		"weft 1\nname w\nop broadcast\nranks 1\nchunks 1\nscratch 1\nchannels 1:\n  copy in[0] -> tmp[0]\n  copy in[0] -> out[0]\nchannels 1:\n  wait channel 0 done 1\n  copy tmp[0] -> tmp[0]\n")
	m := step.New(p, 0)
	ready := m.Ready(nil)
	if len(ready) != 1 || ready[0].Channel != 0 {
		t.Fatalf("%v", ready)
	}
	if w := m.Waiting(); !slices.Equal(w, []int32{1}) {
		t.Errorf("waiting: %v", w)
	}
	m.Complete(0)
	ready = m.Ready(nil)
	if len(ready) != 2 {
		t.Fatalf("%v", ready)
	}
	for _, a := range ready {
		if a.Channel == 1 && (a.Op != sched.Wait || a.On != 0 || a.Done != 1) {
			t.Errorf("%+v", a)
		}
	}
}

// On a channel with an order, ranks, peers and blocks are positions.
func TestOrder(t *testing.T) {
	p := parse(t, strings.Replace(ring, "slots 2\n", "slots 2\norder 0: 2 0 1\n", 1))
	m := step.New(p, 2) // at position 0
	for _, want := range []string{"copy in[0] -> out[2]", "send in[0] to 0", "recv-copy-send -> out[1] from 1 to 0", "recv -> out[0] from 1"} {
		ready := m.Ready(nil)
		if len(ready) != 1 || ready[0].String() != want {
			t.Fatalf("%v, want %s", ready, want)
		}
		m.Complete(0)
	}
}

// What does not exist is a Fault that names rank, channel and step.
func TestFaults(t *testing.T) {
	for text, want := range map[string]string{
		"send in[0] to n":                "peer 3 is outside 0 to 2",
		"send in[0] to r":                "cannot exchange messages with itself",
		"copy in[1] -> out[0]":           "in[1] is outside the 1 chunks of in",
		"copy in[0] -> out[r-1]":         "out[-1] is outside the 3 chunks of out",
		"copy in[0] -> out[0 +: 2]":      "it reads 1 chunks and stores 2",
		"copy in[0 +: 0] -> out[0 +: 0]": "in[0 +: 0] is outside",
		"send in[0 +: r-1] to 1":         "in[0 +: -1] is outside",
		"send in[2 +: 0] to 1":           "in[2 +: 0] is outside the 1 chunks",
		"wait channel 5 done 0":          "there is no channel 5",
		"copy in[0] -> tmp[0]":           "tmp[0] is outside the 0 chunks of tmp",
	} {
		p := parse(t, "weft 1\nname f\nop all-gather\nranks 3\nchunks n\nchannels 1:\n  "+text+"\n")
		m := step.New(p, 0)
		m.Ready(nil)
		var fault *step.Fault
		if !errors.As(m.Err(), &fault) || !strings.Contains(fault.Error(), want) || fault.Rank != 0 {
			t.Errorf("%s: %v, want %q", text, m.Err(), want)
		}
	}
}

// In its steady state a machine allocates nothing.
func TestNoAllocation(t *testing.T) {
	m := step.New(parse(t, strings.Replace(ring, "ranks 3", "ranks 1000000", 1)), 0)
	buf := make([]step.Action, 0, 4)
	advance := func() {
		buf = m.Ready(buf[:0])
		for _, a := range buf {
			m.Complete(a.Channel)
		}
	}
	advance()
	if n := testing.AllocsPerRun(1000, advance); n != 0 {
		t.Errorf("%.1f allocations an action", n)
	}
}

// Run carries messages in order and says who is stuck.
func TestRun(t *testing.T) {
	got := make([]string, 3)
	err := step.Run(parse(t, ring), func(r sched.Rank, a *step.Action, m string) (string, error) {
		if a.Op.Receives() {
			got[r] += m
		} else if a.Op.Sends() {
			m = string(rune('a' + r))
		}
		return m, nil
	})
	if err != nil || !slices.Equal(got, []string{"cb", "ac", "ba"}) {
		t.Errorf("%q, %v", got, err)
	}
	stuck := parse(t, "weft 1\nname s\nop send-recv\nranks 2\nchunks 1\nchannels 1:\n  recv -> out[0] from 1-r\n  send in[0] to 1-r\n")
	err = step.Run(stuck, func(_ sched.Rank, _ *step.Action, m string) (string, error) { return m, nil })
	var s *step.Stuck
	if !errors.As(err, &s) || len(s.Cycle) != 2 || !strings.Contains(err.Error(), "s: deadlock: ranks 0, 1 wait for one another") {
		t.Error(err)
	}
}

func BenchmarkMachine(b *testing.B) {
	m := step.New(parse(b, strings.Replace(ring, "ranks 3", "ranks 16000000", 1)), 0)
	var buf []step.Action
	b.ReportAllocs()
	for b.Loop() {
		if buf = m.Ready(buf[:0]); len(buf) == 0 {
			m = step.New(parse(b, strings.Replace(ring, "ranks 3", "ranks 16000000", 1)), 0)
			continue
		}
		m.Complete(0)
	}
}
