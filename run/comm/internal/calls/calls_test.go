package calls

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

func draw(t *rapid.T, name string) Call {
	return Call{
		Epoch: rapid.Uint32().Draw(t, name), Comm: rapid.Uint32().Draw(t, name), Seq: rapid.Uint64().Draw(t, name),
		Op: sched.Collective(rapid.Uint8().Draw(t, name)), Variant: rapid.Uint8().Draw(t, name),
		Type: reduce.Type(rapid.Uint8().Draw(t, name)), Reduce: reduce.Op(rapid.Uint8().Draw(t, name)),
		Root: rapid.Int32().Draw(t, name), Count: rapid.Uint64().Draw(t, name), Program: rapid.Uint64().Draw(t, name),
	}
}

// A call survives its encodings, and two calls are equal where their encodings
// are: transports compare nothing else.
func TestSignatures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		if rapid.Bool().Draw(t, "alike") {
			b = a
			*rapid.SampledFrom([]*uint64{&b.Seq, &b.Count, &b.Program, new(uint64)}).Draw(t, "field")++
		}
		if got := Of(a.Wire()); got != a {
			t.Fatalf("%+v became %+v", a, got)
		}
		if (a == b) != (a.Wire() == b.Wire()) {
			t.Fatalf("%+v and %+v: equal %t, signatures %t", a, b, a == b, a.Wire() == b.Wire())
		}
		var mine, theirs [transport.CallSize]byte
		a.Put(mine[:])
		wire := a.Wire()
		wire.Put(theirs[:])
		if mine != theirs {
			t.Fatalf("%+v: %x here, %x on the wire", a, mine, theirs)
		}
		var back Call
		if back.Get(mine[:]); back != a {
			t.Fatalf("%+v became %+v", a, back)
		}
	})
}

// What people read when ranks disagree.
func TestWords(t *testing.T) {
	reduces := Call{Comm: 1, Seq: 4, Op: sched.AllReduce, Type: reduce.Float32, Reduce: reduce.Sum, Root: -1, Count: 8}
	sends := Call{Comm: 1, Seq: 4, Op: sched.Broadcast, Type: reduce.Float32, Root: 2, Count: 8}
	pair := Call{Comm: 1, Seq: 1, Op: sched.SendRecv, Variant: PointToPoint, Root: -1}
	form := func(t reduce.Type, n int) transport.Form { return transport.FormOf(Typed(3, t), n) }
	for _, x := range []struct {
		m    *transport.Mismatch
		want string
	}{
		{Mismatch(0, 2, &reduces, &sends),
			"rank 0 does all-reduce of 8 float32 sum as operation 4 of communicator 1, rank 2 does broadcast of 8 float32 at root 2 as operation 4 of communicator 1: different operations"},
		{&transport.Mismatch{Rank: 1, Peer: 0, Mine: pair.Wire(), Theirs: pair.Wire(), Channel: 3, Sent: form(reduce.Float32, 16),
			Want: form(reduce.Int32, 16), Words: Words{}},
			"rank 1 receives from rank 0: 4 float32 were sent, 4 int32 are received"},
		{&transport.Mismatch{Rank: 1, Peer: 0, Mine: reduces.Wire(), Theirs: reduces.Wire(), Channel: 3, Sent: transport.FormOf(3, 16),
			Want: transport.FormOf(3, 24), Words: Words{}},
			"rank 1 and rank 0 disagree in operation 4 (all-reduce of 8 float32 sum): a message on channel 3 has 16 bytes, 24 bytes were expected"},
		{&transport.Mismatch{Rank: 1, Peer: 0, Mine: transport.Call{Comm: 1, Seq: 4}, Channel: 3, Sent: transport.FormOf(3, 16),
			Want: transport.FormOf(3, 24)},
			"rank 1 and rank 0 disagree in operation 4 of communicator 1: a message on channel 3 has 16 bytes, 24 bytes were expected"},
	} {
		if got := x.m.Error(); got != x.want {
			t.Errorf("got  %s\nwant %s", got, x.want)
		}
	}
}
