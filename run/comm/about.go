package comm

import (
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// Links are what the links between the ranks were found to cost.
func (c *Comm) Links() *Links {
	l := c.world.links
	return &l
}

// Chosen is the program that a collective runs by, for the bytes of the larger of its buffers: of all phases, where it runs in
// several. All ranks have the same.
func (c *Comm) Chosen(op Collective, root int, bytes int64) (*Program, error) {
	r := request{Op: op, Type: reduce.Uint8, Root: -1, Count: int(bytes)}
	if op.Rooted() {
		r.Root = root
	}
	if op.Reduces() {
		r.Reduce = reduce.Sum
	}
	if op.Blocks() {
		r.Count /= c.Size()
	}
	p, err := c.library.find(&r, want{})
	if err != nil {
		return nil, err
	}
	return p.program, nil
}

// Message is how long the messages of a collective are at most, in bytes: one of longer chunks is carried out run by run.
func (c *Comm) Message(op Collective) int { return c.library.table().Message(op) }

// Counters tells what the transport counted since it began: bytes, messages,
// refused connections, lost paths; and on rank 0, as rendezvous.*, which connections were refused where
// ranks met.
func (c *Comm) Counters() []Counter {
	var list []Counter
	for _, x := range c.world.ep.Counters() {
		list = append(list, Counter(x))
	}
	if r, ok := c.world.room.(interface{ Counters() []transport.Counter }); ok {
		for _, x := range r.Counters() {
			list = append(list, Counter{Name: "rendezvous." + x.Name, Value: x.Value})
		}
	}
	return list
}
