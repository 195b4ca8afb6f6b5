package read

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// The table of failures that torchrun closes with, and what tracebacks end with.

// rowLine is a row of torchrun's table of failures. An exit code ends one failure.
func (s *scan) rowLine(l *torchText) verdict {
	t := &s.torch
	if t.rows++; t.rows > 64 {
		t.row = nil
	}
	if t.row == nil {
		return goOn
	}
	m := tableRow.FindStringSubmatch(l.body)
	if m == nil {
		return goOn
	}
	t.row[m[1]] = m[2]
	if m[1] != "exitcode" {
		return noted
	}
	host := t.row["host"]
	if strings.HasPrefix(host, "localhost") {
		host = ""
	}
	rank := -1
	if r, err := strconv.Atoi(t.row["rank"]); err == nil {
		rank = r
	}
	f := map[string]string{"code": m[2], "pid": m[3], "by": "torchrun"}
	if t.root {
		f["root"] = "1"
	}
	at := clock(strings.ReplaceAll(t.row["time"], "_", " "))
	t.row, t.rows = map[string]string{}, 0
	return s.exited(l, rank, host, at, f)
}

// echoes are exceptions that only pass on what happened elsewhere.
var echoes = []string{"ChildFailedError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "SignalException",
	"KeyboardInterrupt", "SystemExit",
	"CalledProcessError", "ProcessExitedException", "ProcessRaisedException", "RayTaskError", "BrokenPipeError", "ConnectionResetError"}

// raisedLine is what was raised: the line behind a traceback that is not indented.
func (s *scan) raisedLine(l *torchText) verdict {
	l = s.torch.unwrapped(l)
	if !s.torch.trace[l.prefix] || l.body == "" || l.body[0] == ' ' || l.body[0] == '\t' {
		return goOn
	}
	m := pythonRaise.FindStringSubmatch(strings.TrimSpace(l.body))
	if m == nil {
		return goOn
	}
	delete(s.torch.trace, l.prefix)
	if slices.Contains(echoes, m[1][strings.LastIndexByte(m[1], '.')+1:]) {
		return noted
	}
	f := map[string]string{"type": m[1], "msg": m[2]}
	s.torch.caught = &caught{prefix: l.prefix, fields: f, step: -1}
	return s.torchFound(l, "exception", l.rank, true, f)
}

// caught is an exception of which it is not known yet whether it ended the program. Two further steps say that it did not: ranks
// that wait for one that is gone come no further than the step that they are in.
type caught struct {
	prefix string
	fields map[string]string
	lines  int // since then
	step   int // the last that was seen
	more   int // steps that went up
}

const stepsWithin = 2000 // lines

var stepLine = regexp.MustCompile(`(?i)\b(?:global[ _])?(?:step|iter|iteration)[ :=#\[]+(\d+)`)

// wentOn looks whether a line is a step of the program that raised an exception. Nearly all lines have none of the words.
func (s *scan) wentOn(b []byte) {
	c := s.torch.caught
	if c == nil {
		return
	}
	if c.lines++; c.lines > stepsWithin {
		s.torch.caught = nil
		return
	}
	if !bytes.Contains(b, []byte("tep")) && !bytes.Contains(b, []byte("iter")) {
		return
	}
	prefix, body := plain(string(b))
	m := stepLine.FindStringSubmatch(body)
	if m == nil || prefix != c.prefix {
		return
	}
	if n := number(m[1]); n > c.step {
		c.step = n
		if c.more++; c.more >= 2 {
			c.fields["went_on"], s.torch.caught = "1", nil
		}
	}
}
