package comm

import (
	"context"
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/pair"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// AnyRank and AnyTag let a receive or probe take a message from any rank, and with any tag.
const (
	AnyRank = pair.Any
	AnyTag  = pair.Any
)

// Status is what is known of a message with a tag.
type Status struct {
	From, Tag int
	Count     int // elements
}

// mail are the messages with tags of a communicator.
type mail struct {
	messages // what they ask of the communicator, as messages without tags do
	*pair.Mail
}

// Gone is the failure of a receive from a rank that is gone.
func (m *mail) Gone(rank int, why error) error { return m.c.gone(rank, why) }

// Nobody is the failure of a receive from any rank whose time limit passed.
func (m *mail) Nobody(what string) error {
	return &Failure{Kind: Timeout, Rank: m.c.Rank(), Err: fmt.Errorf("%s: no such message arrived within the time limit", what),
		alias: m.c.aliases(nil)}
}

// mailOf gives the messages with tags. Their port is made when it is first needed.
func (c *Comm) mailOf(rank, tag int, any bool) (*mail, error) {
	switch {
	case rank == AnyRank && any:
	case rank < 0 || rank >= c.Size():
		return nil, errNoRank(rank, c.Size())
	}
	if tag < 0 && !(tag == AnyTag && any) {
		return nil, fmt.Errorf("tag %d: tags are 0 or more", tag)
	}
	if f := c.failed.Load(); f != nil {
		return nil, f
	}
	if m := c.mail.Load(); m != nil {
		return m, nil
	}
	return c.openMail()
}

// openMail makes the port of messages with tags, once.
func (c *Comm) openMail() (*mail, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.mail.Load(); m != nil {
		return m, nil
	}
	port, err := c.world.ep.Port(transport.Group{ID: c.id | 1<<30, Epoch: c.epoch, Members: c.group.Members, Words: calls.Words{}})
	if err != nil {
		return nil, err
	}
	call := calls.Call{Epoch: c.epoch, Comm: c.id, Seq: 1, Op: sched.SendRecv, Variant: calls.PointToPoint, Root: -1}
	m := &mail{messages: messages{c: c}}
	m.Mail = pair.NewMail(m, port, call.Wire(), c.Rank(), c.Size())
	c.mail.Store(m)
	return m, nil
}

// SendTag sends buf to a rank with a tag, a number of 0 or more, by which the receiver may choose it. Messages from one rank to
// another that fit the same receive are received in the order in which they were sent. It returns once buf may be changed. Messages
// with tags and those of Send do not meet.
func SendTag[T Element](ctx context.Context, c *Comm, buf []T, to, tag int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	m, err := c.mailOf(to, tag, false)
	if err != nil {
		return err
	}
	return m.Mail.Send(ctx, to, tag, reduce.TypeOf[T](), reduce.Bytes(buf), nil)
}

// SendTagAsync begins a SendTag and returns at once. Messages to a rank go in the order in which their calls were made.
func SendTagAsync[T Element](ctx context.Context, c *Comm, buf []T, to, tag int) *Handle {
	h := newHandle(ctx)
	m, err := c.mailOf(to, tag, false)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		h.end(err)
		return h
	}
	_ = m.Mail.Send(ctx, to, tag, reduce.TypeOf[T](), reduce.Bytes(buf), h.end)
	return h
}

// RecvTag receives the oldest message from a rank (or AnyRank) with a tag (or AnyTag). It must have as many elements as buf, of the
// same type: see Probe. A message that does not fit is an error of this call alone, and is gone.
func RecvTag[T Element](ctx context.Context, c *Comm, buf []T, from, tag int) (Status, error) {
	m, err := c.mailOf(from, tag, true)
	if err != nil {
		return Status{}, err
	}
	e, err := m.Mail.Post(from, tag, reduce.TypeOf[T](), reduce.Bytes(buf))(ctx)
	return status(e), err
}

// RecvTagAsync begins a RecvTag and returns at once; what was received is in s, which may be nil, when the call is over. Of receives
// that fit a message, the one that was called first gets it.
func RecvTagAsync[T Element](ctx context.Context, c *Comm, buf []T, from, tag int, s *Status) *Handle {
	h := newHandle(ctx)
	m, err := c.mailOf(from, tag, true)
	if err != nil {
		h.end(err)
		return h
	}
	wait := m.Mail.Post(from, tag, reduce.TypeOf[T](), reduce.Bytes(buf))
	go func() {
		e, err := wait(ctx)
		if s != nil {
			*s = status(e)
		}
		h.end(err)
	}()
	return h
}

func status(e pair.Envelope) Status {
	s := Status{From: e.From, Tag: e.Tag}
	if n := e.Type.Size(); n > 0 {
		s.Count = e.Bytes / n
	}
	return s
}

// Probe waits for a message from a rank (or AnyRank) with a tag (or AnyTag) and leaves it where it is: RecvTag with the rank and
// the tag of its status receives it, unless another receive takes it first.
func Probe(ctx context.Context, c *Comm, from, tag int) (Status, error) {
	m, err := c.mailOf(from, tag, true)
	if err != nil {
		return Status{}, err
	}
	e, _, err := m.Mail.Probe(ctx, from, tag, true)
	return status(e), err
}

// TryProbe is Probe that returns at once; false if there is no such message yet.
func TryProbe(c *Comm, from, tag int) (Status, bool, error) {
	m, err := c.mailOf(from, tag, true)
	if err != nil {
		return Status{}, false, err
	}
	e, ok, err := m.Mail.Probe(context.Background(), from, tag, false)
	return status(e), ok, err
}

// Together begins several calls at once and waits for all: none waits for another's end, so that two ranks may send to one another.
// Each call gets an option that it has to hand on:
//
//	comm.Together(ctx,
//	    func(o comm.Option) error { return comm.Send(ctx, c, out, right, o) },
//	    func(o comm.Option) error { return comm.Recv(ctx, c, in, left, o) })
//
// Collectives among them run one after another, in this order, which must be the same on all ranks.
func Together(ctx context.Context, list ...func(o Option) error) error {
	handles := make([]*Handle, len(list))
	for i, call := range list {
		handles[i] = Prepare(call).Start(ctx)
	}
	return WaitAll(ctx, handles...)
}

// Prepared is a call that is made again and again, on the same buffers: a persistent request.
type Prepared struct{ call func(o Option) error }

// Prepare makes a call that can be started often. The call gets an option that it has to hand on, as in Together.
func Prepare(call func(o Option) error) *Prepared { return &Prepared{call} }

// Start begins the call and returns at once.
func (p *Prepared) Start(ctx context.Context) *Handle {
	return async(ctx, nil, func(o []Option) error { return p.call(o[0]) })
}

// PutNotify writes src to memory of a rank and then leaves a number with it (Notices), which it finds once all of src is there. The
// ticket is of both.
func PutNotify[T Element](c *Comm, dst Key, src []T, value uint32, to int) Ticket {
	if t := Put(c, dst, src, to); t.err != nil {
		return t
	}
	return Notify(c, value, to) // operations to a rank are carried out in order
}
