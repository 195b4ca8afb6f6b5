package member

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func samples() []Message {
	c := Change{Number: 8, Leader: 3, Observers: 4, AfterStep: 100, Gone: []ID{0, 5, 9}, Came: []Member{{2, 77, true}, {9000, 1 << 40, false}}}
	e := &Epoch{Number: 9, Leader: Nobody, Observers: 8, Halt: TooMany, Members: []Member{{0, 1, false}, {1, 2, true}, {70000, 3, false}}}
	head := Message{From: 9999, Life: 1234567, EpochNumber: 100}
	var list []Message
	for _, m := range []Message{
		{Verb: Beat, Incarnation: 3, Step: 100_000}, {Verb: Ping, State: Suspect, Incarnation: 1}, {Verb: Ask, Subject: 17},
		{Verb: Answer, Subject: 17, Age: Never, Incarnation: 2}, {Verb: Answer, Subject: 17, Age: 1500 * time.Microsecond},
		{Verb: Rumour, Words: []Word{{17, Failed, Final}, {18, Healthy, 4}}}, {Verb: Turn, Change: &c}, {Verb: Fetch}, {Verb: Whole, Epoch: e},
		{Verb: Notice}, {Verb: Enter, Subject: 4, SubjectLife: 1 << 63}, {Verb: Deny, Reason: Full},
		{Verb: Exit, Subject: 4, SubjectLife: 2, Step: 7, Age: time.Second},
		{Verb: Caught, Subject: 4, SubjectLife: 2}, {Verb: Pace, Step: 12, Age: 3 * time.Second},
	} {
		m.From, m.Life, m.EpochNumber = head.From, head.Life, head.EpochNumber
		list = append(list, m)
	}
	return list
}

func TestMessagesComeBack(t *testing.T) {
	seen := map[Verb]bool{}
	for _, m := range samples() {
		b := m.Append(nil)
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%v comes back as %+v, %v; was %+v", m.Verb, got, err, m)
		}
		for i := range b {
			if _, err := Decode(b[:i]); err == nil {
				t.Errorf("%v is accepted with %d of its %d bytes", m.Verb, i, len(b))
			}
		}
		if _, err := Decode(append(b, 0)); err == nil {
			t.Errorf("%v is accepted with a byte too many", m.Verb)
		}
		seen[m.Verb] = true
	}
	for v := Beat; v < verbs; v++ {
		if !seen[v] {
			t.Errorf("no sample of %v", v)
		}
	}
}

func TestABeatIsSmall(t *testing.T) {
	m := Message{Verb: Beat, From: 9999, Life: 1, EpochNumber: 100, Step: 100_000}
	if n := len(m.Append(nil)); n != 9 {
		t.Errorf("a beat takes %d bytes, not 9", n)
	}
}

func TestEpochsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := someEpoch(t, "epoch", rapid.Uint64Range(1, 1<<63).Draw(t, "number"))
		got, err := DecodeEpoch(e.Append(nil))
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("%v comes back as %v, %v", e, got, err)
		}
	})
}

// What decodes encodes to something that decodes to the same, and no machine
// minds it, be it a member, a leader or a stranger.
func FuzzDecode(f *testing.F) {
	for _, m := range samples() {
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			return
		}
		c := m.Append(nil)
		again, err := Decode(c)
		if err != nil || !reflect.DeepEqual(m, again) || !bytes.Equal(c, again.Append(nil)) {
			t.Fatalf("%+v comes back as %+v, %v", m, again, err)
		}
		if m.Epoch != nil && len(m.Epoch.Members) > 1000 || m.Change != nil && len(m.Change.Came) > 1000 {
			return
		}
		book := &Book{}
		e := &Epoch{Number: 7, Leader: 1, Observers: 3, Members: []Member{{0, 1, false}, {1, 1, false}, {2, 1, true}, {17, 1, false}}}
		for _, id := range []ID{1, 2, 5} {
			x, err := New(Lab(), id, 1, 1, 0, book)
			if err != nil {
				t.Fatal(err)
			}
			x.Decided(0, e)
			if id == 1 {
				x.Lead(0, e)
			}
			if id == 5 {
				x.Join(0, 1, []ID{0})
			}
			for i := range 12 {
				now := Time(i+1) * 15 * time.Millisecond
				x.Message(now, &m)
				x.Tick(now)
				if r := x.Ready(); r.Proposal != nil {
					if r.Proposal.Next.check() != nil || r.Proposal.Next.Number != r.Proposal.Prev+1 {
						t.Fatalf("proposes %v after %d", r.Proposal.Next, r.Proposal.Prev)
					}
					x.Decided(now, r.Proposal.Next)
				}
				for _, o := range x.Ready().Messages {
					if _, err := Decode(o.Message.Append(nil)); err != nil {
						t.Fatalf("sends %+v, which does not decode: %v", o.Message, err)
					}
				}
				x.Advance()
			}
		}
	})
}
