package read

import (
	"bytes"
	"slices"
)

// With NCCL_DEBUG_SUBSYS=COLL nearly all of a log is one kind of line:
//
//	n0:4242:4242 [3] NCCL INFO AllReduce: opCount 1f sendbuff 0x.. recvbuff 0x.. count 4096 .. comm 0x55d2c0 [nranks=8] stream 0x..
//
// Gigabytes of them tell who is behind by their last lines alone. They are kept as bytes, the last ones of each process and
// communicator, and read when the file ends. What is not exactly of this form takes the way of all other lines.

const (
	lastCalls = 256     // that are kept of a process and a communicator
	allCalls  = 1 << 17 // that are kept of a file
)

// rawCalls are the last collectives of a process and a communicator.
type rawCalls struct {
	lines []rawLine
	next  int // that the next one takes the place of
}

type rawLine struct {
	n    int
	text []byte
}

var (
	infoMark  = []byte(" NCCL INFO ")
	countMark = []byte(": opCount ")
	commMark  = []byte(" comm ")
	ncclWord  = []byte("NCCL ")
)

// callKey is what tells a process and a communicator apart: host:pid and the communicator's address, appended to to. It is
// nil for other lines.
func callKey(to, b []byte) []byte {
	i := bytes.Index(b, infoMark)
	if i < 0 {
		return nil
	}
	msg := b[i+len(infoMark):]
	if !bytes.Contains(msg[:min(len(msg), 48)], countMark) {
		return nil
	}
	c := bytes.LastIndex(msg, commMark)
	if c < 0 || bytes.Contains(msg, ncclWord) || bytes.IndexByte(b, 0x1b) >= 0 {
		return nil
	}
	comm := msg[c+len(commMark):]
	if end := bytes.IndexByte(comm, ' '); end >= 0 {
		comm = comm[:end]
	}
	who := origin(b[:i])
	if who == nil {
		return nil
	}
	return append(append(to, who...), comm...)
}

// origin takes host:pid from the end of what stands before a message, host:pid:tid [dev]; nil if it is glued to something.
func origin(head []byte) []byte {
	if k := bytes.LastIndexByte(head, '['); k > 0 && head[len(head)-1] == ']' {
		head = bytes.TrimRight(head[:k], " ")
	}
	word := head[bytes.LastIndexByte(head, ' ')+1:]
	last := bytes.LastIndexByte(word, ':')
	first := bytes.IndexByte(word, ':')
	if first <= 0 || last == first || !only(word[:first], &hostBytes) || !only(word[first+1:last], &digitBytes) ||
		!only(word[last+1:], &digitBytes) || only(word[:first], &digitBytes) {
		return nil // among them 12:00:00
	}
	return word[:last]
}

// bytesOf is a set of bytes.
type bytesOf [256]bool

func setOf(text string) (set bytesOf) {
	for i := range len(text) {
		set[text[i]] = true
	}
	return set
}

var (
	digitBytes = setOf("0123456789")
	hostBytes  = setOf("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-")
)

// only says whether a text has no other bytes than those of a set.
func only(text []byte, set *bytesOf) bool {
	for _, c := range text {
		if !set[c] {
			return false
		}
	}
	return true
}

// keepCall keeps a line if it is a collective's, and reports whether it is. The first of each process and communicator is
// read like any other line, so that its host is known.
func (s *scan) keepCall(n int, b []byte) bool {
	s.key = callKey(s.key[:0], b)
	if s.key == nil {
		return false
	}
	r := s.raw[string(s.key)]
	if r == nil {
		if s.raw == nil {
			s.raw = map[string]*rawCalls{}
		}
		s.raw[string(s.key)] = &rawCalls{}
		return false
	}
	if len(r.lines) < s.callLimit() {
		r.lines = append(r.lines, rawLine{n, bytes.Clone(b)})
		return true
	}
	l := &r.lines[r.next]
	l.n, l.text = n, append(l.text[:0], b...)
	r.next = (r.next + 1) % len(r.lines)
	s.passed++
	return true
}

// callLimit is how many collectives are kept of each process and communicator: fewer, where there are many.
func (s *scan) callLimit() int { return min(lastCalls, max(8, allCalls/max(1, len(s.raw)))) }

// readCalls reads the collectives that were kept, in the order of the file.
func (s *scan) readCalls() {
	var all []rawLine
	limit := s.callLimit()
	for _, r := range s.raw {
		slices.SortFunc(r.lines, func(a, b rawLine) int { return a.n - b.n })
		drop := max(0, len(r.lines)-limit)
		s.passed += drop
		all = append(all, r.lines[drop:]...)
	}
	s.raw, s.last = nil, false
	slices.SortFunc(all, func(a, b rawLine) int { return a.n - b.n })
	for _, l := range all {
		s.ncclLines(l.n, string(l.text))
	}
}
