package launch

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit is how a rank's process ended.
type Exit struct {
	Rank   int            `json:"rank"`
	Host   string         `json:"host,omitempty"`
	Pid    int            `json:"pid"`
	Code   int            `json:"code"`             // what it exited with, unless a signal ended it
	Signal syscall.Signal `json:"signal,omitempty"` // what ended it, or 0
	After  time.Duration  `json:"after_ns"`         // from its start to its end
	Stderr []string       `json:"stderr,omitempty"` // its last lines there
}

func (e *Exit) set(w syscall.WaitStatus) {
	if w.Signaled() {
		e.Signal = w.Signal()
	} else {
		e.Code = w.ExitStatus()
	}
}

// OK says that the rank ended by itself and with 0.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == 0 }

// Status is the code as a shell gives it: 128 and the signal where one ended it.
func (e Exit) Status() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// String says which rank ended and how: by a signal, by name where it has one, or with an exit code.
func (e Exit) String() string {
	where := fmt.Sprintf("rank %d (pid %d", e.Rank, e.Pid)
	if e.Host != "" {
		where += " on " + e.Host
	}
	if e.Signal != 0 {
		name := unix.SignalName(e.Signal)
		if name == "" {
			name = fmt.Sprintf("signal %d", int(e.Signal))
		}
		return where + ") was ended by " + name
	}
	return fmt.Sprintf("%s) exited with code %d", where, e.Code)
}

// Failure is the first rank's failure of a run, the one that ended the others.
type Failure struct {
	Exit  Exit
	Ranks int
	Asked os.Signal // the signal that had asked all ranks to end before, or nil
}

// Error names the rank, how it ended and its last words.
func (f *Failure) Error() string {
	var b strings.Builder
	b.WriteString(f.Exit.String())
	if f.Asked != nil {
		name := unix.SignalName(f.Asked.(syscall.Signal))
		fmt.Fprintf(&b, " after %s was handed on to all", name)
	}
	if n := len(f.Exit.Stderr); n > 0 {
		fmt.Fprintf(&b, "; its last words:")
		for _, l := range f.Exit.Stderr {
			b.WriteString("\n  " + l)
		}
	}
	return b.String()
}
