package sim

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
)

// WriteChrome writes a trace as the JSON that chrome://tracing and Perfetto
// read: a process for each rank, a thread for each channel, times in
// microseconds. name gives a rank's name.
func (t *Trace) WriteChrome(w io.Writer, name func(job, rank int) string) error {
	b := bufio.NewWriter(w)
	b.WriteString("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n")
	sep := ""
	line := func(format string, args ...any) {
		b.WriteString(sep)
		fmt.Fprintf(b, format, args...)
		sep = ",\n"
	}
	us := func(ps int64) string { return strconv.FormatFloat(float64(ps)/1e6, 'f', -1, 64) }
	type key struct{ job, rank int }
	seen := map[key]bool{}
	for _, s := range t.Spans {
		k := key{s.Job, int(s.Rank)}
		pid := s.Job*1_000_000 + int(s.Rank)
		if !seen[k] {
			seen[k] = true
			line(`{"ph": "M", "name": "process_name", "pid": %d, "args": {"name": %s}}`, pid, strconv.Quote(name(k.job, k.rank)))
		}
		if s.To >= 0 && s.Flow > s.Begin {
			line(`{"ph": "X", "name": "overhead", "cat": "software", "pid": %d, "tid": %d, "ts": %s, "dur": %s}`,
				pid, s.Channel, us(int64(s.Begin)), us(int64(s.Flow-s.Begin)))
		}
		line(`{"ph": "X", "name": "%s", "cat": "%s", "pid": %d, "tid": %d, "ts": %s, "dur": %s, "args": {"bytes": %d, "from": %d, "to": %d}}`,
			s.Op, category(s), pid, s.Channel, us(int64(s.Flow)), us(int64(s.End-s.Flow)), int64(s.Bytes), s.From, s.To)
	}
	for _, g := range t.Gaps {
		line(`{"ph": "X", "name": "%d rounds like the ones before", "cat": "folded", "pid": -1, "tid": 0, "ts": %s, "dur": %s}`,
			g.Rounds, us(int64(g.Begin)), us(int64(g.End-g.Begin)))
	}
	b.WriteString("\n]}\n")
	return b.Flush()
}

// category says whether a span sends, receives or works.
func category(s Span) string {
	switch {
	case s.To >= 0:
		return "send"
	case s.From >= 0:
		return "receive"
	}
	return "local"
}
