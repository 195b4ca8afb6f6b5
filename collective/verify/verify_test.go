package verify_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/collective/verify"
)

func parse(t *testing.T, text string) *sched.Program {
	t.Helper()
	p, err := sched.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Each wrong program is answered with one line that names what is wrong.
func TestWrongProgramsAreNamed(t *testing.T) {
	for _, c := range []struct{ what, text, want string }{
		{"a contribution twice", `weft 1
name twice
op all-reduce
ranks 2
chunks 1
slots 1
channels 1:
  send in[0] to 1-r
  recv-reduce in[0] -> out[0] from 1-r
  reduce in[0] -> out[0]
`, "twice: rank 0 channel 0 step 2 (reduce in[0] -> out[0]) reduces the contribution of rank 0 to chunk 0 twice"},
		{"a contribution missing", `weft 1
name lacking
op all-reduce
ranks 2
chunks 1
channels 1:
  copy in[0] -> out[0]
`, "lacking: rank 0 lacks the contribution of rank 1 in out[0]"},
		{"nothing there", `weft 1
name nothing
op all-gather
ranks 2
chunks 2
channels 1:
  copy in[0] -> out[r]
`, "nothing: rank 0 never gets out[1]"},
		{"the wrong chunk", `weft 1
name crossed
op all-to-all
ranks 2
chunks 2
channels 1:
  copy in[r] -> out[r]
  send in[r] to 1-r
  recv -> out[1-r] from 1-r
`, "crossed: rank 0 ends with input chunk 1 in out[1], not 0"},
		{"two chunks mixed", `weft 1
name mixed
op all-reduce
ranks 2
chunks 2
channels 1:
  send in[0] to 1-r
  recv-reduce in[1] -> out[1] from 1-r
`, "adds input chunk 0 to input chunk 1"},
		{"sizes that differ", `weft 1
name sizes
op broadcast
ranks 2
chunks 2
channels 1:
  if r == 0:
    copy in[0 +: 2] -> out[0 +: 2]
    send in[0 +: 2] to 1
  else:
    recv -> out[0] from 0
`, "expects 1 chunks from rank 0 and gets 2"},
		{"scratch read before it is written", `weft 1
name early
op send-recv
ranks 2
chunks 1
scratch 1
channels 1:
  send tmp[0] to 1-r
  recv -> out[0] from 1-r
`, "reads tmp[0] before anything is written there"},
		{"a wait in a circle", `weft 1
name circle
op send-recv
ranks 3
chunks 1
channels 1:
  recv -> out[0] from (r-1)%n
  send in[0] to (r+1)%n
`, "circle: deadlock: ranks 0, 2, 1 wait for one another"},
		{"too few slots", `weft 1
name narrow
op send-recv
ranks 2
chunks 2
slots 1
channels 1:
  send in[0] to 1-r
  send in[1] to 1-r
  recv -> out[0] from 1-r
  recv -> out[1] from 1-r
`, "waits for rank 1 to take a message"},
		{"a message nobody takes", `weft 1
name lost
op broadcast
ranks 2
chunks 1
channels 1:
  if r == 0:
    copy in[0] -> out[0]
    send in[0] to 1
    send in[0] to 1
  else:
    recv -> out[0] from 0
`, "rank 1 never takes 1 messages that rank 0 sends it on channel 0"},
		{"a chunk out of bounds", `weft 1
name outside
op broadcast
ranks 2
chunks 1
channels 1:
  copy in[r] -> out[0]
`, "in[1] is outside the 1 chunks of in"},
		{"a peer out of bounds", `weft 1
name nobody
op broadcast
ranks 2
chunks 1
channels 1:
  send in[0] to r+1
`, "peer 2 is outside 0 to 1"},
		{"different association", `weft 1
name bits
op all-reduce
ranks 3
chunks 1
slots 1
channels 1:
  send in[0] to (r+1)%n
  send in[0] to (r+2)%n
  recv-reduce in[0] -> out[0] from (r+1)%n
  recv-reduce out[0] -> out[0] from (r+2)%n
`, "sums out[0] in another association than rank 0 does: the bits may differ; let all ranks add in one order"},
	} {
		_, err := verify.Program(parse(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

// Where every rank adds in an order that starts at itself, the sums of two ranks
// differ in their last bits. Rotation sees it though it follows only one rank.
func TestAssociationUnderRotation(t *testing.T) {
	for _, n := range []int{5, 65} {
		p := parse(t, fmt.Sprintf(`weft 1
name own-order
op all-reduce
ranks %d
chunks n
slots 70
channels 1:
  repeat b < n:
    repeat k < n-1:
      send in[(r+b)%%n] to (r+k+1)%%n
    recv-reduce in[(r-1+b)%%n] -> out[(r-1+b)%%n] from (r-1)%%n
`, n))
		if _, err := verify.Program(p); err == nil {
			t.Error("a program that drops messages was accepted")
		}
		// Chunk (r+b) of everybody, from the farthest rank to the nearest.
		p = parse(t, fmt.Sprintf(`weft 1
name own-order
op all-reduce
ranks %d
chunks n
slots 70
channels 1:
  repeat b < n:
    repeat k < n-1:
      send in[(r+b+k+1)%%n] to (r+k+1)%%n
  repeat b < n:
    recv-reduce in[(r+b)%%n] -> out[(r+b)%%n] from (r-1)%%n
    repeat k < n-2:
      recv-reduce out[(r+b)%%n] -> out[(r+b)%%n] from (r-k-2)%%n
`, n))
		_, err := verify.Program(p)
		if err == nil || !strings.Contains(err.Error(), "another association") {
			t.Errorf("%d ranks: %v", n, err)
		}
	}
}

const twoChannels = `weft 1
name shared
op broadcast
ranks 2
chunks 1
channels 1:
  if r == 0:
    copy in[0] -> out[0]
    send in[0] to 1
  else:
    recv -> out[0] from 0
channels 1:
  if r == 1:
    %s
    copy out[0] -> out[0]
`

// Two channels that touch a chunk need an order between them: a run in which
// the right one came first is not enough.
func TestChannelsThatShareAChunk(t *testing.T) {
	_, err := verify.Program(parse(t, fmt.Sprintf(twoChannels, "wait channel 0 done 0")))
	want := "shared: rank 1 has no order between two uses of out[0]: rank 1 channel 0 step 0 (recv -> out[0] from 0) and rank 1 channel 1 step 1 (copy out[0] -> out[0])"
	if err == nil || err.Error() != want && !strings.Contains(err.Error(), "before anything is written") {
		t.Errorf("%v, want %q", err, want)
	}
	rep, err := verify.Program(parse(t, fmt.Sprintf(twoChannels, "wait channel 0 done 1")))
	if err != nil || rep.Steps != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
}

// A race that no run in this process would show: both channels of rank 1 get
// their messages in any order, and both write out[0].
func TestRaceOfTwoWrites(t *testing.T) {
	text := `weft 1
name race
op broadcast
ranks 2
chunks 1
channels 2:
  if r == 0:
    copy in[0] -> out[0]
    send in[0] to 1
  else:
    recv -> out[0] from 0
`
	_, err := verify.Program(parse(t, text))
	var v *verify.Violation
	if !errors.As(err, &v) || !strings.Contains(v.What, "no order between two uses of out[0]") || v.Rank != 0 {
		t.Error(err)
	}
	text = strings.Replace(text, "  if r == 0:", "  if c == 1:\n    wait channel 0 done 2-r\n  if r == 0:", 1)
	if _, err := verify.Program(parse(t, text)); err != nil {
		t.Error(err)
	}
}

// An order through another rank's messages counts as well as a wait.
func TestOrderThroughMessages(t *testing.T) {
	text := `weft 1
name around
op all-reduce
ranks 2
chunks 1
scratch 1
channels 1:
  if r == 0:
    copy in[0] -> tmp[0]
    send tmp[0] to 1
  else:
    recv-reduce in[0] -> out[0] from 0
channels 1:
  if r == 1:
    wait channel 0 done 1
    send out[0] to 0
  else:
    recv -> tmp[0] from 1
    copy tmp[0] -> out[0]
`
	rep, err := verify.Program(parse(t, text))
	if err != nil || rep.Steps != 2 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if rep.Direct {
		t.Log("the message may stay in tmp[0]")
	}
}

// So does a message of no chunks.
func TestOrderThroughSignals(t *testing.T) {
	text := `weft 1
name signalled
op all-reduce
ranks 2
chunks 1
scratch 1
channels 1:
  if r == 0:
    copy in[0] -> tmp[0]
    send tmp[0] to 1
    send in[0 +: 0] to 1
  else:
    recv-reduce in[0] -> out[0] from 0
    recv -> tmp[0 +: 0] from 0
channels 1:
  if r == 1:
    wait channel 0 done 2
    send out[0] to 0
  else:
    recv -> tmp[0] from 1
    copy tmp[0] -> out[0]
`
	rep, err := verify.Program(parse(t, text))
	if err != nil || rep.MaxSent != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	// A race is one with a signal that says nothing of it, too.
	early := strings.Replace(strings.Replace(text, "wait channel 0 done 2\n    send out[0]", "send in[0]", 1), "copy tmp[0] -> out[0]",
		"reduce tmp[0] -> out[0]", 1)
	if _, err := verify.Program(parse(t, early)); err == nil {
		t.Error("a race was accepted")
	}
}

// %+v tells the story that led to a violation, oldest step first.
func TestTraceTellsTheStory(t *testing.T) {
	p := parse(t, `weft 1
name chain
op reduce
ranks 3
chunks 1
channels 1:
  if r == 2:
    send in[0] to 1
  if r == 1:
    recv-reduce in[0] -> out[0] from 2
    send out[0] to 0
  if r == 0:
    recv -> out[0] from 1
`)
	_, err := verify.Program(p)
	want := `chain: rank 0 lacks the contribution of rank 0 in out[0]
    rank 2 channel 0 step 0: send in[0] to 1
    rank 1 channel 0 step 0: recv-reduce in[0] -> out[0] from 2
    rank 1 channel 0 step 1: send out[0] to 0
    rank 0 channel 0 step 0: recv -> out[0] from 1`
	if got := fmt.Sprintf("%+v", err); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := fmt.Sprintf("%v", err); strings.Contains(got, "\n") {
		t.Errorf("%%v has more than a line: %s", got)
	}
}

func TestDeadlockNamesAll(t *testing.T) {
	p := parse(t, "weft 1\nname c\nop send-recv\nranks 65\nchunks 1\nchannels 1:\n  recv -> out[0] from (r-1)%n\n  send in[0] to (r+1)%n\n")
	_, err := verify.Program(p)
	var stuck *step.Stuck
	if !errors.As(err, &stuck) {
		t.Errorf("by rotation: %v", err)
	}
	_, err = verify.Unrolled(p)
	if !errors.As(err, &stuck) || len(stuck.Cycle) != 65 {
		t.Errorf("unrolled: %v", err)
	}
}

// Texts that ask for more than a machine has are refused, not tried.
func TestWorkIsBounded(t *testing.T) {
	for want, text := range map[string]string{
		"1099511627776 chunks of in; proofs end at":                                           "weft 1\nname big\nop broadcast\nranks 2\nchunks 1099511627776\nchannels 1:\n  copy in[0 +: 1099511627776] -> out[0 +: 1099511627776]\n",
		"steps, choices and rounds of loops (line 7: repeat i < 1<<40, 1099511627776 rounds)": "weft 1\nname idle\nop broadcast\nranks 2\nchunks 1\nchannels 1:\n  repeat i < 1<<40:\n    if i < 0:\n      copy in[0] -> out[0]\n",
		"3000000 ranks and its text does not rotate":                                          "weft 1\nname many\nop broadcast\nranks 3000000\nchunks 1\nchannels 1:\n  copy in[0] -> out[0]\n",
	} {
		if _, err := verify.Program(parse(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// FuzzProgram looks for texts that break the verifier itself, and for programs
// that it accepts and that do not do what they promise.
func FuzzProgram(f *testing.F) {
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			if p, err := a.Program(algo.Spec{Op: op, Ranks: 3}); err == nil {
				f.Add(p.String())
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := sched.Parse(text)
		if err != nil || p.Ranks+p.Switches > 6 || p.Channels() > 4 || p.Op == sched.Barrier ||
			max(p.NumChunks(sched.In), p.NumChunks(sched.Out), p.NumChunks(sched.Tmp)) > 64 {
			return
		}
		steps := 0 // only programs that are over soon
		err = step.Run(p, func(_ sched.Rank, _ *step.Action, m struct{}) (struct{}, error) {
			if steps++; steps > 2000 {
				return m, errors.New("long")
			}
			return m, nil
		})
		if err != nil {
			return
		}
		if _, err := verify.Program(p); err != nil {
			return
		}
		if err := right(p, rand.New(rand.NewPCG(1, 1))); err != nil {
			t.Fatalf("accepted, but %v\n%s", err, p)
		}
	})
}
