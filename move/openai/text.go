package openai

import (
	"strings"
	"unicode/utf8"
)

// text turns the bytes of tokens into text that may be shown: whole characters, and nothing that may still become the
// beginning of a stop string.
type text struct {
	stop    []string
	bytes   []byte // of an unfinished character
	held    string // text that is not shown yet
	stopped bool
}

// add takes a token's bytes and returns the text that can be shown now. After a stop string there is no more.
func (t *text) add(b []byte) string {
	if t.stopped {
		return ""
	}
	t.bytes = append(t.bytes, b...)
	n := whole(t.bytes)
	t.held += valid(t.bytes[:n])
	t.bytes = t.bytes[n:]
	return t.cut(false)
}

// end returns the rest.
func (t *text) end() string {
	if t.stopped {
		return ""
	}
	t.held += valid(t.bytes)
	t.bytes = nil
	return t.cut(true)
}

// cut returns what can be shown of the held text. What might be the beginning of a stop string is held back until more
// comes, unless all is set.
func (t *text) cut(all bool) (show string) {
	// The stop string that was complete first ends the text, however many tokens it came in.
	first, end := -1, 0
	for _, s := range t.stop {
		if i := strings.Index(t.held, s); i >= 0 && (first < 0 || i+len(s) < end || i+len(s) == end && i < first) {
			first, end = i, i+len(s)
		}
	}
	if first >= 0 {
		show, t.held, t.stopped = t.held[:first], "", true
		return show
	}
	keep := 0
	if !all {
		keep = t.beginning()
	}
	n := len(t.held) - keep
	show, t.held = t.held[:n], t.held[n:]
	return show
}

// beginning is the length of the longest end of the text that is the beginning of a stop string.
func (t *text) beginning() (most int) {
	for _, s := range t.stop {
		for n := min(len(s)-1, len(t.held)); n > most; n-- {
			if strings.HasSuffix(t.held, s[:n]) {
				most = n
			}
		}
	}
	return most
}

// whole is the number of bytes before an unfinished character at the end.
func whole(b []byte) int {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}

// valid is text with one replacement character for each byte that belongs to no character, so that it does not matter how
// tokens cut it.
func valid(b []byte) string { return string([]rune(string(b))) }
