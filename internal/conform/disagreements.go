package conform

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/run/transport"
)

var disagreements = []Scenario{
	{Name: "different calls", Ranks: 2, Run: differentCalls},
	{Name: "a third rank disagrees", Ranks: 3, Run: third},
	{Name: "wrong length", Ranks: 2, Run: wrongLength},
	{Name: "wrong tag", Ranks: 2, Run: wrongTag},
	{Name: "old epoch", Ranks: 2, Run: oldEpoch},
}

// others are calls that differ in one thing from that of the first rank.
var others = []struct {
	name   string
	change func(c *transport.Call)
}{
	{"number", func(c *transport.Call) { c.Seq++ }},
	{"first byte", func(c *transport.Call) { c.Signature[0]++ }},
	{"middle byte", func(c *transport.Call) { c.Signature[transport.SignatureSize/2] ^= 0x80 }},
	{"last byte", func(c *transport.Call) { c.Signature[transport.SignatureSize-1]++ }},
	{"signature", func(c *transport.Call) { c.Signature = transport.Signature{} }},
}

// mismatch checks that an error names both ranks with both calls.
func mismatch(err error, me, peer int, mine, theirs transport.Call) error {
	var m *transport.Mismatch
	if !errors.As(err, &m) {
		return fmt.Errorf("got %v, want a mismatch", err)
	}
	want := transport.Mismatch{Rank: me, Peer: peer, Mine: mine, Theirs: theirs, Words: words{}}
	if *m != want {
		return fmt.Errorf("got %+v, want %+v", *m, want)
	}
	if text := m.Error(); text != fmt.Sprintf("operations %d and %d", mine.Seq, theirs.Seq) {
		return fmt.Errorf("the group's words were not asked: %q", text)
	}
	return nil
}

// words are the words of the groups here.
type words struct{}

func (words) Mismatch(m *transport.Mismatch) string {
	return fmt.Sprintf("operations %d and %d", m.Mine.Seq, m.Theirs.Seq)
}

// differentCalls: whatever it is that two ranks see differently, both learn it,
// with what the other does, and get no data.
func differentCalls(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	me, peer := e.Rank(), 1-e.Rank()
	for i, o := range others {
		for _, n := range []int{8, 100000} {
			comm := uint32(10*i + 100 + n%3)
			p, err := e.Port(transport.Group{ID: comm, Epoch: 1, Members: everyone(e), Words: words{}})
			if err != nil {
				return err
			}
			pair := [2]transport.Call{call(comm, 5), call(comm, 5)}
			o.change(&pair[1])
			p.Begin(pair[me], impatient())
			b := make([]byte, n)
			sendErr := p.Send(peer, 0, message(n, 1))
			err = p.Recv(peer, 0, b)
			if sendErr != nil { // a rank may learn it while it sends
				err = sendErr
			}
			if err := mismatch(err, me, peer, pair[me], pair[peer]); err != nil {
				return fmt.Errorf("other %s, %d bytes: %w", o.name, n, err)
			}
			if !bytes.Equal(b, make([]byte, n)) {
				return fmt.Errorf("other %s: the message was received", o.name)
			}
			if err := bar.wait(); err != nil { // nobody leaves before the other knows
				return err
			}
			if err := p.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// third: a rank that waits for one peer learns that another one disagrees.
func third(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	p, err := e.Port(transport.Group{ID: 7, Epoch: 1, Members: everyone(e), Words: words{}})
	if err != nil {
		return err
	}
	mine, theirs := call(7, 3), call(7, 3)
	theirs.Signature[3] = 12
	switch e.Rank() {
	case 0:
		p.Begin(mine, impatient())
		if err := mismatch(p.Recv(1, 0, make([]byte, 8)), 0, 2, mine, theirs); err != nil {
			return err
		}
	case 2:
		p.Begin(theirs, impatient())
		if err := p.Send(0, 1, message(8, 1)); err != nil {
			return err
		}
	}
	if err := bar.wait(); err != nil {
		return err
	}
	return p.Close()
}

// tellsLengths reports whether an error of rank 1 says how long rank 0's message is and how long it was to be.
func tellsLengths(err error, sent, want int) bool {
	var m *transport.Mismatch
	return errors.As(err, &m) && m.Rank == 1 && m.Peer == 0 && m.Sent == transport.FormOf(0, sent) && m.Want == transport.FormOf(0, want) &&
		m.Mine == m.Theirs && strings.Contains(m.Error(), fmt.Sprintf("%d bytes", want))
}

// wrongLength: a message of another length is an error that tells both.
func wrongLength(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	for k, n := range []int{0, 24, 5000, 300000} {
		p, err := begun(e, uint32(100+k))
		if err != nil {
			return err
		}
		if e.Rank() == 0 {
			if err := p.Send(1, 0, message(n, 1)); err != nil {
				return err
			}
		} else {
			if err := p.Recv(0, 0, make([]byte, n+8)); !tellsLengths(err, n, n+8) {
				return fmt.Errorf("a message of %d bytes received as %d gave %v", n, n+8, err)
			}
		}
		if err := bar.wait(); err != nil {
			return err
		}
		if err := p.Close(); err != nil {
			return err
		}
	}
	return nil
}

// wrongTag: a message with another tag is an error that tells both, and one with
// the tag of its channel is not, whichever others came before on the way.
func wrongTag(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	f32, i32 := transport.Tagged(60000, 3), transport.Tagged(60000, 255)
	for k, n := range []int{0, 24, 5000, 300000} {
		p, err := begun(e, uint32(100+k))
		if err != nil {
			return err
		}
		for i, channel := range []int{f32, 60000, i32} {
			if e.Rank() == 0 {
				err = p.Send(1, channel, message(n, uint64(i)))
			} else {
				b := make([]byte, n)
				if k%2 == 0 {
					p.Expect(0, channel, b)
				}
				if err = p.Recv(0, channel, b); err == nil {
					err = same(b, uint64(i))
				}
			}
			if err != nil {
				return fmt.Errorf("%d bytes on channel %#x: %w", n, channel, err)
			}
		}
		if e.Rank() == 0 {
			if err := p.Send(1, f32, message(n, 1)); err != nil {
				return err
			}
		} else {
			err := p.Recv(0, i32, make([]byte, n))
			var m *transport.Mismatch
			if !errors.As(err, &m) || m.Rank != 1 || m.Peer != 0 || m.Sent != transport.FormOf(f32, n) || m.Want != transport.FormOf(i32, n) ||
				transport.Way(m.Channel) != 60000 {
				return fmt.Errorf("%d bytes of one tag received as another gave %v", n, err)
			}
		}
		if err := bar.wait(); err != nil {
			return err
		}
		if err := p.Close(); err != nil {
			return err
		}
	}
	return nil
}

// oldEpoch: what was sent in an epoch that has ended never reaches the next.
func oldEpoch(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	for _, n := range []int{16, 20000} {
		for epoch := uint32(1); epoch <= 3; epoch++ {
			if err := inEpoch(e, bar, n, epoch); err != nil {
				return err
			}
		}
	}
	return nil
}

// inEpoch sends a message in each epoch, which only the last one receives: what waits from the others must be gone.
func inEpoch(e transport.Endpoint, bar *barrier, n int, epoch uint32) error {
	p, err := e.Port(transport.Group{ID: uint32(n), Epoch: epoch, Members: everyone(e)})
	if err != nil {
		return err
	}
	c := call(uint32(n), 1)
	c.Epoch = epoch
	p.Begin(c, impatient())
	if e.Rank() == 0 {
		if err := p.Send(1, 0, message(n, uint64(epoch))); err != nil {
			return err
		}
	}
	if e.Rank() == 1 && epoch == 3 {
		b := make([]byte, n)
		if err := p.Recv(0, 0, b); err != nil {
			return err
		}
		if err := same(b, 3); err != nil {
			return err
		}
	}
	if err := bar.wait(); err != nil {
		return err
	}
	return p.Close()
}
