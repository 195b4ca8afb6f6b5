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

// Screen is where the lines of several ranks go, both streams of each: one line at a
// time, since both often end on one terminal.
type Screen struct {
	mu   sync.Mutex
	open *lineWriter // has written a line that is not finished: progress behind a carriage return
}

// output makes the writers of ranks.
type output struct {
	spec   *Spec
	screen Screen
}

func newOutput(s *Spec) *output { return &output{spec: s} }

func (o *output) writers(rank int) (stdout, stderr io.Writer) {
	prefix := ""
	if o.spec.Prefix {
		prefix = "[" + strconv.Itoa(rank) + "] "
	}
	if o.spec.Capture != nil {
		return o.lines("", o.spec.Capture(rank)), o.lines(prefix, o.spec.Stderr)
	}
	return o.lines(prefix, o.spec.Stdout), o.lines(prefix, o.spec.Stderr)
}

// lines gives nil for nil, and the writer itself where a single rank writes
// without prefix: nothing can be torn there, and a prompt without a newline
// shows at once.
func (o *output) lines(prefix string, w io.Writer) io.Writer {
	if w == nil || o.spec.N == 1 && prefix == "" {
		return w
	}
	return Lines(w, &o.screen, func() string { return prefix })
}

// Lines gives a writer that hands on whole lines to another one, each in one Write
// and with a prefix that is asked for when the line is written. Progress that is
// written over and over behind carriage returns is handed on at once, with the prefix
// behind each return; a line of another rank that comes in between begins a new line.
func Lines(to io.Writer, screen *Screen, prefix func() string) io.Writer {
	return &lineWriter{to: to, screen: screen, prefix: prefix, fresh: true}
}

type lineWriter struct {
	to     io.Writer
	screen *Screen
	prefix func() string
	held   []byte // what has come of a line and is not written yet
	fresh  bool   // the next byte begins a line, or follows a carriage return
	shows  bool   // the line has progress in it: nothing of it is held back
}

// Write passes on whole lines, so that the output of ranks does not mix within a line. Text with a carriage return is a
// progress bar and goes out at once; a line longer than maxLine is cut. It never fails, and keeps what has no end yet.
func (l *lineWriter) Write(b []byte) (int, error) {
	l.held = append(l.held, b...)
	done := 0
	for {
		rest := l.held[done:]
		if end := bytes.IndexByte(rest, '\n'); end >= 0 && (end < maxLine || l.shows) {
			l.emit(rest[:end+1])
			l.shows, done = false, done+end+1
			continue
		}
		// A return at the end may be half of a line's end.
		text := bytes.TrimSuffix(rest, []byte{'\r'})
		if l.shows = l.shows || bytes.IndexByte(text, '\r') >= 0; l.shows {
			l.emit(text)
			done += len(text)
		} else if len(rest) >= maxLine {
			l.emit(append(bytes.Clone(rest[:maxLine]), '\n'))
			done += maxLine
			continue
		}
		l.held = append(l.held[:0], l.held[done:]...)
		return len(b), nil
	}
}

// emit writes text with prefixes, which ends a line or is progress.
func (l *lineWriter) emit(text []byte) {
	if len(text) == 0 {
		return
	}
	s := l.screen
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []byte
	if s.open != nil && s.open != l {
		out = append(out, '\n')
		s.open.fresh = true
	}
	prefix := l.prefix()
	for i, c := range text {
		back := c == '\r' && (i+1 == len(text) || text[i+1] != '\n')
		if l.fresh && !back {
			out, l.fresh = append(out, prefix...), false
		}
		out = append(out, c)
		l.fresh = l.fresh || back || c == '\n'
	}
	if s.open = l; text[len(text)-1] == '\n' {
		s.open = nil
	}
	_, _ = l.to.Write(out)
}

// Flush writes a last line that has no newline.
func (l *lineWriter) Flush() {
	l.screen.mu.Lock()
	open := l.screen.open == l
	l.screen.mu.Unlock()
	if len(l.held) > 0 || open {
		l.fresh = l.fresh && !open
		l.emit(append(l.held, '\n'))
		l.held, l.shows = nil, false
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
