package verify_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

func parsed(t *testing.T, text string) *sched.Program {
	t.Helper()
	p, err := sched.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A step that stores one chunk further than it reads is proven where in and out are
// apart, and not in place, where they overlap.
func TestShiftedStepsAreNotInPlace(t *testing.T) {
	text := "weft 1\nname s\nop all-to-all\nranks 2\nchunks 6\nslots 1\nchannels 1:\n" +
		"  send in[(1-r)*3 +: 3] to 1-r\n  recv -> out[(1-r)*3 +: 3] from 1-r\n  copy in[r*3 +: 3] -> out[r*3 +: 3]\n"
	rep, err := verify.Program(parsed(t, text))
	if err != nil || !rep.InPlace || !rep.Aligned || !rep.Placed {
		t.Fatalf("%+v, %v", rep, err)
	}
	// The same through chunks of out that belong to others.
	text = strings.Replace(text, "  copy in[r*3 +: 3] -> out[r*3 +: 3]\n",
		"  copy in[r*3 +: 2] -> out[r*3+1 +: 2]\n  copy in[r*3 +: 3] -> out[r*3 +: 3]\n", 1)
	rep, err = verify.Program(parsed(t, text))
	if err != nil || rep.InPlace || rep.Aligned || rep.Placed {
		t.Fatalf("shifted: %+v, %v", rep, err)
	}
}

// Loops of any number of rounds are refused at once, with their line.
func TestEndlessLoopsAreRefused(t *testing.T) {
	for _, ranks := range []int{2, 100} {
		for _, inner := range []string{"copy in[0] -> out[0]", "if i < 0:\n      copy in[0] -> out[0]"} {
			_, err := verify.Program(parsed(t,
				fmt.Sprintf("weft 1\nname l\nop all-reduce\nranks %d\nchunks n\nslots 1\nchannels 1:\n  repeat i < 1099511627776:\n    %s\n",
					ranks, inner)))
			if !errors.Is(err, verify.ErrTooLarge) || !strings.Contains(err.Error(), "line 8: repeat i < 1099511627776") {
				t.Error(err)
			}
		}
	}
}

// Programs of more than a thousand channels that share chunks are proven.
func TestManyChannelsThatShare(t *testing.T) {
	const channels = 80
	text := fmt.Sprintf("weft 1\nname many\nop all-reduce\nranks 16\nchunks %d\nscratch %d\nslots 16\nchannels %d:\n  copy in[c] -> tmp[c]\n",
		channels, channels, channels)
	for d := 1; d < 16; d *= 2 {
		text += fmt.Sprintf("  send tmp[c] to r^%d\n  recv-reduce tmp[c] -> tmp[c] from r^%d\n", d, d)
	}
	whole := text + fmt.Sprintf("channels %d:\n  wait channel c-%d done 9\n  copy tmp[c-%d] -> out[c-%d]\n",
		channels, channels, channels, channels)
	if rep, err := verify.Program(parsed(t, whole)); err != nil || rep.Ranks*rep.Channels <= 2000 {
		t.Errorf("%+v, %v", rep, err)
	}
	early := strings.Replace(whole, "done 9", "done 8", 1)
	if _, err := verify.Program(parsed(t, early)); err == nil || !strings.Contains(err.Error(), "no order between two uses") {
		t.Errorf("a wait that is a step short: %v", err)
	}
}

// Right says what Program says, but for modes.
func TestRightIsProgramWithoutModes(t *testing.T) {
	p := parsed(t,
		"weft 1\nname x\nop all-reduce\nranks 2\nchunks 1\nslots 1\nchannels 1:\n  send in[0] to 1-r\n  recv-reduce in[0] -> out[0] from 1-r\n")
	full, err := verify.Program(p)
	if err != nil || !full.Direct {
		t.Fatalf("%+v, %v", full, err)
	}
	quick, err := verify.Right(p)
	if err != nil || quick.Direct || quick.Steps != full.Steps || quick.Digest != full.Digest {
		t.Errorf("%+v, %v", quick, err)
	}
}
