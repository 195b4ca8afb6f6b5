package choice

import "slices"

// A Judge says whether a program that was made for links is still worth running: links
// change. Ranks count the calls that it serves, and after some of them agree on one
// number, how many times as long as when it was made these took. Everything follows from
// the numbers that they agreed on, so all ranks decide alike:
//
//	serves ──(slow 1.5 times, 3 looks in a row)──► doubted: the runtime's choice runs for a look
//	  ▲                                               │
//	  └──(the choice was no faster: what is usual now counts from here on)──┤
//	                                                  └──(the choice was faster)──► dropped
type Judge struct {
	made    *Made
	state   State
	times   []float64 // of the calls since the last look, over what they took when the program was made
	strikes int
	usual   float64 // what is no sign of a change
	slow    float64 // of the program, when it came to be doubted
}

// State is what runs.
type State int

// States of a Judge.
const (
	Serves  State = iota // the program
	Doubted              // the runtime's choice, to compare
	Dropped              // the runtime's choice, for good
)

// Calls between two looks, the slowness that counts, and how often in a row it must.
const (
	callsPerLook = 8
	tooSlow      = 1.5
	looks        = 3
)

// NewJudge is for a program that has just been found.
func NewJudge(m *Made) *Judge { return &Judge{made: m, usual: 1} }

// Add takes how long a call took, and its bytes. It reports whether it is time to look.
func (j *Judge) Add(bytes int64, micros float64) bool {
	expected := j.made.Took * float64(max(bytes, 1)) / float64(max(j.made.From, 1))
	j.times = append(j.times, micros/max(expected, 1e-3))
	return len(j.times) >= callsPerLook
}

// Median is what a rank says in a look.
func (j *Judge) Median() float64 {
	s := slices.Sorted(slices.Values(j.times))
	return s[(len(s)-1)/2]
}

// Heard ends a look with the number that all ranks agreed on. It reports whether
// something else runs from now on.
func (j *Judge) Heard(ratio float64) bool {
	j.times = j.times[:0]
	was := j.state
	switch {
	case j.state == Dropped:
	case j.state == Doubted && ratio < j.slow:
		j.state = Dropped
	case j.state == Doubted:
		j.state, j.strikes, j.usual = Serves, 0, j.slow
	case ratio <= tooSlow*j.usual:
		j.strikes = 0
	default:
		j.slow = ratio
		if j.strikes++; j.strikes == looks {
			j.state = Doubted
		}
	}
	return j.state != was
}

// State is what runs now.
func (j *Judge) State() State { return j.state }

// Made is the program.
func (j *Judge) Made() *Made { return j.made }

// Slow is how many times as long as when it was made the program took, when it was doubted.
func (j *Judge) Slow() float64 { return j.slow }
