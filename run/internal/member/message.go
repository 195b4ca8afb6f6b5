package member

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Verb says what a message is.
type Verb uint8

// The verbs. Every message carries its sender's id, life and epoch number, so that
// each is also a word on who is behind.
const (
	Beat   Verb = iota + 1 // a sign of life: Incarnation, Step
	Ping                   // asks for a beat at once; State and Incarnation are what the sender holds of the receiver
	Ask                    // asks an observer of Subject for its last sign of life
	Answer                 // Age since a beat of Subject that the sender had itself, or Never
	Rumour                 // Words
	Turn                   // Change: the epoch after Change.Number-1
	Fetch                  // asks for the sender's next epoch; its number is in the head
	Whole                  // Epoch with all its members
	Notice                 // the receiver is behind; the sender's number is in the head
	Enter                  // Subject with life SubjectLife wants to join
	Deny                   // Reason why it may not
	Exit                   // Subject leaves of its own will; Step and Age as in Pace
	Caught                 // Subject, a recovering member, has caught up; Step and Age likewise
	Pace                   // Step was done last, Age is the time a step takes
	verbs
)

func (v Verb) String() string {
	if v == 0 || v >= verbs {
		return fmt.Sprintf("verb %d", uint8(v))
	}
	return [...]string{"", "beat", "ping", "ask", "answer", "rumour", "turn", "fetch", "whole", "notice", "enter", "deny", "exit", "caught",
		"pace"}[v]
}

// Never is the Age of what has not been heard.
const Never time.Duration = -1

// Final is the incarnation that cannot be refuted: the process was seen to exit.
const Final uint32 = math.MaxUint32

// Word is news of a member. A failed one outranks an alive one of the same
// incarnation, and a higher incarnation outranks both; only the member itself
// raises its incarnation.
type Word struct {
	ID          ID
	State       State // Healthy, Suspect or Failed
	Incarnation uint32
}

// Message is what ranks tell one another; which fields count depends on the verb.
type Message struct {
	Verb        Verb
	State       State
	Reason      Reason
	From        ID
	Subject     ID
	Incarnation uint32
	Life        uint64
	EpochNumber uint64
	SubjectLife uint64
	Step        uint64
	Age         time.Duration
	Words       []Word
	Change      *Change
	Epoch       *Epoch
}

// maxList bounds the words of a message, which then takes 11 KB at most.
const maxList = 1000

var (
	errShort = errors.New("member: message ends early")
	errLong  = errors.New("member: bytes after the end of a message")
)

// Append adds the message's binary form to b. All numbers are varints: a beat
// of rank 9,999 in epoch 100 at step 100,000 takes 8 bytes and those of the life.
func (m *Message) Append(b []byte) []byte {
	b = append(b, byte(m.Verb))
	b = binary.AppendUvarint(b, uint64(m.From))
	b = binary.AppendUvarint(b, m.Life)
	b = binary.AppendUvarint(b, m.EpochNumber)
	switch m.Verb {
	case Beat:
		b = binary.AppendUvarint(b, uint64(m.Incarnation))
		b = binary.AppendUvarint(b, m.Step)
	case Ping:
		b = append(b, byte(m.State))
		b = binary.AppendUvarint(b, uint64(m.Incarnation))
	case Ask:
		b = binary.AppendUvarint(b, uint64(m.Subject))
	case Answer:
		b = binary.AppendUvarint(b, uint64(m.Subject))
		age := uint64(0)
		if m.Age >= 0 {
			age = uint64(m.Age/time.Microsecond) + 1
		}
		b = binary.AppendUvarint(b, age)
		b = binary.AppendUvarint(b, uint64(m.Incarnation))
	case Rumour:
		b = binary.AppendUvarint(b, uint64(len(m.Words)))
		for _, w := range m.Words {
			b = append(b, byte(w.State))
			b = binary.AppendUvarint(b, uint64(w.ID))
			b = binary.AppendUvarint(b, uint64(w.Incarnation))
		}
	case Turn:
		c := m.Change
		b = appendHead(b, c.Number, c.Leader, c.Observers, c.AfterStep, c.Halt)
		b = binary.AppendUvarint(b, uint64(len(c.Gone)))
		last := ID(0)
		for _, id := range c.Gone {
			b = binary.AppendUvarint(b, uint64(id-last))
			last = id
		}
		b = appendMembers(b, c.Came)
	case Whole:
		b = m.Epoch.Append(b)
	case Enter, Exit, Caught:
		b = binary.AppendUvarint(b, uint64(m.Subject))
		b = binary.AppendUvarint(b, m.SubjectLife)
		b = binary.AppendUvarint(b, m.Step)
		b = binary.AppendUvarint(b, uint64(m.Age/time.Microsecond))
	case Deny:
		b = append(b, byte(m.Reason))
	case Pace:
		b = binary.AppendUvarint(b, m.Step)
		b = binary.AppendUvarint(b, uint64(m.Age/time.Microsecond))
	}
	return b
}

func appendHead(b []byte, number uint64, leader ID, observers int, after uint64, halt Reason) []byte {
	b = binary.AppendUvarint(b, number)
	b = binary.AppendUvarint(b, uint64(leader))
	b = append(b, byte(observers), byte(halt))
	return binary.AppendUvarint(b, after)
}

// appendMembers writes members by their distance from the one before, with Recovering in its lowest bit: members in a
// row take few bytes. The list must be in the order of ids.
func appendMembers(b []byte, list []Member) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	last := ID(0)
	for _, m := range list {
		gap := uint64(m.ID-last) << 1
		if m.Recovering {
			gap |= 1
		}
		b = binary.AppendUvarint(b, gap)
		b = binary.AppendUvarint(b, m.Life)
		last = m.ID
	}
	return b
}

// Append adds the epoch's binary form to b, which is what the store holds: one
// byte and the life for each member of a dense list, 60 KB for 10,000 members
// with lives of 32 bits.
func (e *Epoch) Append(b []byte) []byte {
	b = appendHead(b, e.Number, e.Leader, e.Observers, e.AfterStep, e.Halt)
	return appendMembers(b, e.Members)
}

// DecodeEpoch reads what Epoch.Append wrote.
func DecodeEpoch(b []byte) (*Epoch, error) {
	r := reader{b: b}
	e := r.epoch()
	if err := r.end(); err != nil {
		return nil, err
	}
	return e, e.check()
}

// Decode reads what Message.Append wrote. It never takes more memory than some
// forty times the bytes it is given.
func Decode(b []byte) (Message, error) {
	r := reader{b: b}
	m := Message{Verb: Verb(r.byte(byte(verbs - 1)))}
	m.From, m.Life, m.EpochNumber = r.id(), r.uint(), r.uint()
	switch m.Verb {
	case Beat:
		m.Incarnation, m.Step = r.uint32(), r.uint()
	case Ping:
		m.State, m.Incarnation = State(r.byte(byte(Recovering))), r.uint32()
	case Ask:
		m.Subject = r.id()
	case Answer:
		m.Subject, m.Age, m.Incarnation = r.id(), r.age(true), r.uint32()
	case Rumour:
		n := r.count(3)
		if n > maxList {
			r.fail(fmt.Errorf("member: %d rumours in a message; %d are the most", n, maxList))
		}
		for range n {
			m.Words = append(m.Words, Word{State: State(r.byte(byte(Failed))), ID: r.id(), Incarnation: r.uint32()})
		}
	case Turn:
		e := r.head()
		c := &Change{Number: e.Number, Leader: e.Leader, Observers: e.Observers, AfterStep: e.AfterStep, Halt: e.Halt}
		last := uint64(0)
		for i := range r.count(1) {
			last = r.next(last, r.uint(), i)
			c.Gone = append(c.Gone, ID(last))
		}
		c.Came = r.members()
		m.Change = c
	case Fetch, Notice:
	case Whole:
		m.Epoch = r.epoch()
	case Enter, Exit, Caught:
		m.Subject, m.SubjectLife, m.Step, m.Age = r.id(), r.uint(), r.uint(), r.age(false)
	case Deny:
		m.Reason = Reason(r.byte(byte(reasonCount - 1)))
	case Pace:
		m.Step, m.Age = r.uint(), r.age(false)
	default:
		r.fail(fmt.Errorf("member: %v is unknown; they are 1 to %d", m.Verb, verbs-1))
	}
	if err := r.end(); err != nil {
		return Message{}, err
	}
	if m.Epoch != nil {
		if err := m.Epoch.check(); err != nil {
			return Message{}, err
		}
	}
	return m, nil
}

// reader takes values off the front; its first error sticks.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
		r.b = nil
	}
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return errLong
	}
	return r.err
}

func (r *reader) byte(most byte) byte {
	if len(r.b) == 0 {
		r.fail(errShort)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	if v > most {
		r.fail(fmt.Errorf("member: value %d in a message where %d is the most", v, most))
		return 0
	}
	return v
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uint32() uint32 {
	v := r.uint()
	if v > math.MaxUint32 {
		r.fail(fmt.Errorf("member: %d in a message where 32 bits are the most", v))
		return 0
	}
	return uint32(v)
}

func (r *reader) id() ID { return ID(r.uint32()) }

// age reads microseconds; where an age may be missing they are counted from 1.
func (r *reader) age(missing bool) time.Duration {
	v := r.uint()
	if v > uint64(math.MaxInt64/time.Microsecond) {
		r.fail(fmt.Errorf("member: an age of %d us in a message", v))
		return 0
	}
	if !missing {
		return time.Duration(v) * time.Microsecond
	}
	if v == 0 {
		return Never
	}
	return time.Duration(v-1) * time.Microsecond
}

// count reads a list's length, which the bytes left must suffice for.
func (r *reader) count(least int) int {
	n := r.uint()
	if n > uint64(len(r.b)/least) {
		r.fail(errShort)
		return 0
	}
	return int(n)
}

// next adds a gap to the id before; the first may be 0, the others must ascend.
func (r *reader) next(last, gap uint64, i int) uint64 {
	if gap > math.MaxUint32 || last+gap >= uint64(Nobody) || i > 0 && gap == 0 {
		r.fail(fmt.Errorf("member: id %d and a gap of %d in a list; ids ascend up to %d", last, gap, Nobody-1))
		return 0
	}
	return last + gap
}

func (r *reader) head() *Epoch {
	e := &Epoch{Number: r.uint(), Leader: r.id(), Observers: int(r.byte(MaxObservers)), Halt: Reason(r.byte(byte(reasonCount - 1)))}
	e.AfterStep = r.uint()
	return e
}

func (r *reader) members() []Member {
	var list []Member
	last := uint64(0)
	for i := range r.count(2) {
		gap := r.uint()
		last = r.next(last, gap>>1, i)
		list = append(list, Member{ID: ID(last), Recovering: gap&1 == 1, Life: r.uint()})
	}
	return list
}

func (r *reader) epoch() *Epoch {
	e := r.head()
	e.Members = r.members()
	return e
}
