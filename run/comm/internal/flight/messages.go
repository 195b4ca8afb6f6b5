package flight

import (
	"sync"

	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/reduce"
)

// Message is a send or a receive. Times are nanoseconds since the host started; Ended is 0 while it is under way.
type Message struct {
	What  string `json:"what"` // send to, receive from
	Peer  int    `json:"peer"` // rank of the communicator
	Type  string `json:"type"`
	Bytes int    `json:"bytes"`
	Began int64  `json:"began_ns"`
	Ended int64  `json:"ended_ns,omitempty"`
	Err   string `json:"error,omitempty"`
}

// messages are the last sends and receives.
type messages struct {
	mu   sync.Mutex
	ring []message
	n    uint64 // that began
}

type message struct {
	what         string
	peer, bytes  int
	typ          reduce.Type
	began, ended int64 // in ticks
	err          error
}

// messagesKept is how many sends and receives are kept.
const messagesKept = 256

// BeginMessage notes that a send or receive begins, and gives its number.
func (f *Recorder) BeginMessage(what string, peer int, t reduce.Type, bytes int) (number uint64) {
	m := &f.messages
	now := clock.Exact()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ring == nil {
		m.ring = make([]message, messagesKept)
	}
	m.ring[m.n%messagesKept] = message{what: what, peer: peer, bytes: bytes, typ: t, began: now}
	m.n++
	return m.n - 1
}

// EndMessage notes how it ended.
func (f *Recorder) EndMessage(number uint64, err error) {
	m := &f.messages
	now := clock.Exact()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n-number <= messagesKept {
		x := &m.ring[number%messagesKept]
		x.ended, x.err = now, err
	}
}

// Messages are the last sends and receives, in the order in which they began.
func (f *Recorder) Messages() (list []Message) {
	m := &f.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	at := clock.NewAnchor()
	for i := m.n - min(m.n, messagesKept); i < m.n; i++ {
		x := &m.ring[i%messagesKept]
		r := Message{What: x.what, Peer: x.peer, Type: x.typ.String(), Bytes: x.bytes, Began: at.Time(x.began), Ended: at.Time(x.ended)}
		if x.err != nil {
			r.Err = x.err.Error()
		}
		list = append(list, r)
	}
	return list
}
