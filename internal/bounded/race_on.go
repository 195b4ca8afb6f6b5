//go:build race

package bounded

// Race says that the race detector is on: all that a program does takes it five to twenty times as long.
const Race = true

// slower is by what limits grow under the detector.
const slower = 5
