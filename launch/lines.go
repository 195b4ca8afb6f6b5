package launch

import (
	"bytes"
	"io"
	"strconv"
	"sync"
)

const (
	maxLine   = 1 << 20 // a longer line is written in pieces of this size, each as a line
	tailLines = 10      // last words that are kept of a rank
	tailBytes = 4 << 10
)

// output makes the writers of ranks: whole lines under one lock, since both
// streams often end on one terminal.
type output struct {
	spec *Spec
	mu   sync.Mutex
}

func newOutput(s *Spec) *output { return &output{spec: s} }

func (o *output) writers(rank int) (stdout, stderr io.Writer) {
	var prefix []byte
	if o.spec.Prefix {
		prefix = []byte("[" + strconv.Itoa(rank) + "] ")
	}
	if o.spec.Capture != nil {
		return o.lines(nil, o.spec.Capture(rank)), o.lines(prefix, o.spec.Stderr)
	}
	return o.lines(prefix, o.spec.Stdout), o.lines(prefix, o.spec.Stderr)
}

// lines gives nil for nil, and the writer itself where a single rank writes
// without prefix: nothing can be torn there, and a prompt without a newline
// shows at once.
func (o *output) lines(prefix []byte, w io.Writer) io.Writer {
	if w == nil || o.spec.N == 1 && prefix == nil {
		return w
	}
	return Lines(w, &o.mu, string(prefix))
}

// Lines gives a writer that hands on whole lines to another one, each in one Write
// under the lock and with a prefix.
func Lines(to io.Writer, mu *sync.Mutex, prefix string) io.Writer {
	return &lineWriter{to: to, mu: mu, prefix: []byte(prefix), line: []byte(prefix)}
}

// lineWriter hands on whole lines, one Write each.
type lineWriter struct {
	to     io.Writer
	mu     *sync.Mutex // held while writing to to
	prefix []byte
	line   []byte // the prefix and what has come of the line so far
}

func (l *lineWriter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		room := maxLine - (len(l.line) - len(l.prefix))
		end := bytes.IndexByte(b[:min(room, len(b))], '\n')
		if end < 0 && len(b) < room {
			l.line = append(l.line, b...)
			break
		}
		if end < 0 {
			end = room
			l.emit(b[:end])
		} else {
			l.emit(b[:end])
			end++
		}
		b = b[end:]
	}
	return n, nil
}

func (l *lineWriter) emit(rest []byte) {
	l.line = append(append(l.line, rest...), '\n')
	l.mu.Lock()
	_, _ = l.to.Write(l.line)
	l.mu.Unlock()
	l.line = append(l.line[:0], l.prefix...)
}

// Flush writes a last line that has no newline.
func (l *lineWriter) Flush() {
	if len(l.line) > len(l.prefix) {
		l.emit(nil)
	}
}

// tail keeps the last lines that were written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func newTail() *tail { return &tail{} }

func (t *tail) Write(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b[max(0, len(b)-tailBytes):]...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
}

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []string
	for l := range bytes.Lines(bytes.TrimRight(t.buf, "\n")) {
		list = append(list, string(bytes.TrimRight(l, "\r\n")))
	}
	return list[max(0, len(list)-tailLines):]
}
