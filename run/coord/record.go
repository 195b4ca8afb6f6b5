package coord

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Life tells a process from others of the same id.
type Life = member.Life

// State is what a worker, or its launcher, says of it.
type State string

// The states of a worker.
const (
	Joining State = "joining" // started; takes part from an epoch on that lists it
	Ready   State = "ready"   // has the state of the others; active from the next epoch on
	Leaving State = "leaving" // goes on until an epoch is without it
	Dead    State = "dead"    // its process was seen to end; Why says how
)

// Worker is a process that takes part or waits to.
type Worker struct {
	ID      member.ID `json:"id"`   // its slot; ranks are in the order of ids
	Life    Life      `json:"life"` // of the process; chosen by Register
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Address string    `json:"address"`         // host:port at which it can be reached; rank 0's is where the others meet
	Agent   string    `json:"agent,omitempty"` // of its host, as the other agents reach it; "" if that one takes no part in observing
	State   State     `json:"state"`
	Step    uint64    `json:"step,omitempty"` // done last
	Pace    int64     `json:"pace,omitempty"` // of a step, in nanoseconds
	Why     string    `json:"why,omitempty"`  // it is dead or leaves

	// Node names the launcher's node: workers of one node have neighbouring ids.
	Node string `json:"node,omitempty"`
	// Round and Fault are of programs that do not follow epochs. Round is the
	// Epoch.Round that the worker's process was started in, or is about to be: no
	// process of an earlier round is left. Fault says how its process failed in that
	// round; the decider answers with a new round.
	Round uint64 `json:"round,omitempty"`
	Fault string `json:"fault,omitempty"`
}

func (w Worker) String() string {
	return fmt.Sprintf("worker %d (pid %d on %s)", w.ID, w.PID, w.Host)
}

var states = []State{Joining, Ready, Leaving, Dead}

// check says what is wrong with a worker's record.
func (w *Worker) check() error {
	switch {
	case w.ID == member.Nobody || w.ID == outside:
		return fmt.Errorf("coord: worker id %d is reserved; ids count from 0 to %d", w.ID, outside-1)
	case w.Life == 0:
		return fmt.Errorf("coord: worker %d has no life; Register chooses one", w.ID)
	case !slices.Contains(states, w.State):
		return fmt.Errorf("coord: worker %d is in state %.32q; known are joining, ready, leaving and dead", w.ID, w.State)
	case w.Pace < 0:
		return fmt.Errorf("coord: worker %d has a pace of %d ns; it is not below 0", w.ID, w.Pace)
	case strings.ContainsFunc(w.Host+w.Address+w.Agent, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("coord: worker %d has control characters in its host %q, address %q or agent %q", w.ID, w.Host, w.Address, w.Agent)
	}
	return nil
}

// Seat is a worker's place in an epoch, and where it is found.
type Seat struct {
	member.Seat
	Host    string `json:"host,omitempty"`
	Address string `json:"address,omitempty"`
	Node    string `json:"node,omitempty"`
	Agent   string `json:"agent,omitempty"`
}

// Epoch is a numbered list of those that train together. It is written once and
// never changed.
type Epoch struct {
	Number     uint64        `json:"number"`               // counts from 1
	Start      uint64        `json:"start"`                // number of the last epoch before the job was formed anew; 0 if never
	Members    []Seat        `json:"members"`              // in rank order
	Recovering []Seat        `json:"recovering,omitempty"` // to be brought up to date by the members
	Master     string        `json:"master,omitempty"`     // address of rank 0, where the members meet
	Token      string        `json:"token"`                // by which the members know one another in this epoch
	Step       uint64        `json:"step"`                 // the last that the leader knew of; newcomers continue from there at the earliest
	After      uint64        `json:"after,omitempty"`      // members change over once this step is done; 0: at once
	Halt       member.Reason `json:"halt,omitempty"`       // if set, members write a checkpoint and leave
	Reason     string        `json:"reason"`               // why there is a new epoch
	Decider    string        `json:"decider,omitempty"`    // that published it

	// Round is the number of the epoch since which programs that do not follow epochs
	// run: the latest one that changed the members, or that starts all of them again
	// because a process failed. Restarts counts the latter.
	Round    uint64 `json:"round,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
}

// Rank is the rank of a process, and whether it has one.
func (e *Epoch) Rank(id member.ID, life Life) (int, bool) {
	for i, s := range e.Members {
		if s.ID == id && s.Life == life {
			return i, true
		}
	}
	return -1, false
}

// Lists reports whether a process is a member or recovering.
func (e *Epoch) Lists(id member.ID, life Life) bool {
	for _, s := range e.Recovering {
		if s.ID == id && s.Life == life {
			return true
		}
	}
	_, ok := e.Rank(id, life)
	return ok
}

// check says what is wrong with an epoch's record.
func (e *Epoch) check() error {
	if e.Number == 0 || e.Start >= e.Number {
		return fmt.Errorf("coord: epoch %d of a job formed after epoch %d; numbers count from 1 and follow that", e.Number, e.Start)
	}
	if e.Halt > member.Taken {
		return fmt.Errorf("coord: epoch %d halts for reason %d; known are 0 to %d", e.Number, uint8(e.Halt), uint8(member.Taken))
	}
	seen := make(map[member.ID]bool, len(e.Members)+len(e.Recovering))
	for _, list := range [][]Seat{e.Members, e.Recovering} {
		for i, s := range list {
			switch {
			case s.ID == member.Nobody || s.ID == outside || s.Life == 0:
				return fmt.Errorf("coord: epoch %d lists id %d with life %s; neither may be reserved", e.Number, s.ID, s.Life)
			case seen[s.ID]:
				return fmt.Errorf("coord: epoch %d lists id %d twice", e.Number, s.ID)
			case i > 0 && list[i-1].ID > s.ID:
				return fmt.Errorf("coord: epoch %d lists id %d after %d; ranks are in the order of ids", e.Number, s.ID, list[i-1].ID)
			}
			seen[s.ID] = true
		}
	}
	return nil
}

// Member is the epoch as the membership machine has it, under the number that the
// store gave it.
func (e *Epoch) Member() *member.Epoch { return e.shifted(0) }

// shifted is the epoch as the machine of a decider has it, which counts from the
// forming of the job.
func (e *Epoch) shifted(start uint64) *member.Epoch {
	m := &member.Epoch{Number: e.Number - start, Leader: outside, Observers: member.Default().Observers, AfterStep: e.After, Halt: e.Halt}
	a, b := e.Members, e.Recovering
	for len(a)+len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].ID < b[0].ID {
			m.Members, a = append(m.Members, member.Member{ID: a[0].ID, Life: uint64(a[0].Life)}), a[1:]
		} else {
			m.Members, b = append(m.Members, member.Member{ID: b[0].ID, Life: uint64(b[0].Life), Recovering: true}), b[1:]
		}
	}
	return m
}

// outside is the id of a decider, which need not be a member. All have the same,
// so that a change of the leader is no reason for a new epoch.
const outside = member.Nobody - 1

// format is a job's first record.
type format struct {
	Version int    `json:"version"`
	Job     string `json:"job"`
	Proof   string `json:"proof,omitempty"` // that a client has the token; see proof
}

func (f *format) check() error {
	if f.Version < 1 {
		return fmt.Errorf("coord: version %d of a job's data; they count from 1", f.Version)
	}
	return checkName("job", f.Job)
}

// decode reads a record strictly: one JSON object with known fields and nothing after it.
func decode[T any](what string, b []byte, into *T, check func() error) error {
	if err := checkSize(what, len(b), MaxGather); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("coord: %s is not a record of format %d: %w", what, Format, err)
	}
	if d.More() {
		return fmt.Errorf("coord: %s has something after the record, at byte %d", what, d.InputOffset())
	}
	return check()
}

// DecodeWorker reads a worker's record.
func DecodeWorker(b []byte) (Worker, error) {
	var w Worker
	err := decode("the record of a worker", b, &w, w.check)
	return w, err
}

// DecodeEpoch reads an epoch's record.
func DecodeEpoch(b []byte) (Epoch, error) {
	var e Epoch
	err := decode("the record of an epoch", b, &e, e.check)
	return e, err
}

func decodeFormat(b []byte) (format, error) {
	var f format
	err := decode("the record of a job", b, &f, f.check)
	return f, err
}

// encode writes a record, within the store's limits.
func encode(what string, v any, limit int) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("coord: %s: %w", what, err)
	}
	return string(b), checkSize(what, len(b), limit)
}
