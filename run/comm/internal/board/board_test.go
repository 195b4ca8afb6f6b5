package board

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The table in the package comment is what the code does.
func TestTheTableOfTheLayout(t *testing.T) {
	src, err := os.ReadFile("board.go")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"entries": atEntries, "calls": atCalls, "mid": atMid, "leave": atLeave, "staged": atStaged, "waiting": atWaiting,
		"shrink": atShrink,
		"notice": atNotice, "let go": atLetGo, "sleepers": atSleepers, "steps": atSteps, "small": atSmall, "forms": atForms}
	var ends int
	rows := regexp.MustCompile(`(?m)^//\s+(\d+)\s+(\d+)\s+(let go|\w+) `).FindAllStringSubmatch(string(src), -1)
	for _, r := range rows {
		at, _ := strconv.Atoi(r[1])
		n, _ := strconv.Atoi(r[2])
		if have, known := want[r[3]]; !known || have != at {
			t.Errorf("%s: the table says %d, the code %d", r[3], at, have)
		}
		if at != ends {
			t.Errorf("%s begins at %d, what is before it ends at %d", r[3], at, ends)
		}
		ends = at + n
		delete(want, r[3])
	}
	if len(want) > 0 || ends != Size {
		t.Errorf("the table ends at %d of %d bytes and leaves out %v", ends, Size, want)
	}
}

// Boards that are laid out differently have different hashes.
func TestHashChangesWithTheLayout(t *testing.T) {
	was := slices.Clone(layout)
	h := Hash()
	for i := range layout {
		layout[i]++
		if Hash() == h {
			t.Errorf("number %d of the layout does not count", i)
		}
		layout[i]--
	}
	if !slices.Equal(was, layout) || Hash() != h {
		t.Error("the hash is not a function of the layout")
	}
}

func TestNotice(t *testing.T) {
	b := make(Board, Size)
	if _, ok := b.Notice(4); ok {
		t.Error("an empty board has a notice")
	}
	n := Notice{From: 2, Kind: 3, Seq: 17, Culprits: []int{0, 3, 1, 2, 0, 1, 2, 3, 1}, Text: strings.Repeat("why ", 100)}
	n.Leave(b, n.Body())
	second := Notice{From: 1, Kind: 1, Text: "later"}
	second.Leave(b, second.Body())
	got, ok := b.Notice(4)
	if !ok || got.From != 2 || got.Kind != 3 || got.Seq != 17 || !slices.Equal(got.Culprits, n.Culprits[:8]) ||
		!strings.HasPrefix(n.Text, got.Text) || len(got.Text) < 150 {
		t.Errorf("%+v, want the first that was left", got)
	}
	if b.IsLetGo(0) || b.Entered() != 0 {
		t.Error("a notice wrote elsewhere")
	}
}

func TestShrinkLines(t *testing.T) {
	b := make(Board, Size)
	b.Propose(3, Address{7, 9})
	if !b.Proposes(3) || b.Proposes(2) || b.Next() != (Address{7, 9}) {
		t.Error("a proposal is not read as it was written")
	}
	if a := AddressIn(Address{7, 9}.Append(nil)); a != (Address{7, 9}) {
		t.Errorf("%+v", a)
	}
	if _, ok := b.Record(3); ok || b.Vote() != (Vote{}) {
		t.Error("an empty board has a record or a vote")
	}
	r := Record{Ballot: 7, Chosen: 9, ID: 12}
	for i := range MaxShrink {
		if i%3 == 0 {
			r.Add(i)
		}
	}
	b.WriteRecord(3, r.Encode())
	if got, ok := b.Record(3); !ok || got != r || !got.Has(3) || got.Has(4) {
		t.Errorf("%+v, %t; want %+v", got, ok, r)
	}
	if _, ok := b.Own(); ok {
		t.Error("what the owner is asked to vote for is its own")
	}
	if got, ok := b.Chosen(); ok {
		t.Errorf("%+v is chosen in ballot 9 and of ballot 7", got)
	}
	other := Record{Ballot: 9, Chosen: 9}
	b.WriteRecord(4, other.Encode())
	if got, ok := b.Record(3); !ok || got != r {
		t.Errorf("another candidate's record became %+v", got)
	}
	if got, ok := b.Chosen(); !ok || got != other {
		t.Errorf("chosen is %+v, %t; want %+v", got, ok, other)
	}
	b[RecordAt(3)+recordSet+3]++ // half of another record
	if _, ok := b.Record(3); ok {
		t.Error("a record that is being written was read")
	}
	v := Vote{Promised: 5, Accepted: 1<<32 - 1}
	if got := b.SwapVote(Vote{}, v); got != (Vote{}) || b.Vote() != v {
		t.Errorf("a vote that was %v became %v, want %v", got, b.Vote(), v)
	}
	if got := b.SwapVote(Vote{}, Vote{Promised: 9}); got != v || b.Vote() != v {
		t.Errorf("a vote was changed by a rank that did not know it: %v, %v", got, b.Vote())
	}
}

// Every rank of the window's operations has its own line, and lines of the same operation lie at the same place.
func TestEntriesDoNotOverlap(t *testing.T) {
	b := make(Board, Size)
	seen := map[int]uint64{}
	for seq := uint64(1000); seq < 1000+Window; seq++ {
		at := EntryOffset(seq)
		if was, dup := seen[at]; dup {
			t.Errorf("operations %d and %d share the line at %d", was, seq, at)
		}
		seen[at] = seq
		if EntryOffset(seq+Window) != at {
			t.Errorf("operation %d and the one a window later have different lines", seq)
		}
		b.Entry(seq).Flag().Set(seq)
	}
	if b.Entered() != 1000+Window-1 {
		t.Errorf("entered %d", b.Entered())
	}
}

// FuzzDecodeRecord: only what Encode wrote is read, and it is read as it was written.
func FuzzDecodeRecord(f *testing.F) {
	r := Record{Ballot: 7, Chosen: 7, ID: 3}
	r.Add(0)
	r.Add(MaxShrink - 1)
	f.Add(r.Encode())
	f.Add(make([]byte, recordSize))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, ok := DecodeRecord(text); ok && !bytes.Equal(r.Encode(), text) {
			t.Errorf("%x is read as %+v, which is %x", text, r, r.Encode())
		}
	})
}
