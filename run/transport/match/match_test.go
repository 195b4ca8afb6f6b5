package match

import (
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/run/transport"
)

func call(seq uint64, sig byte) (c transport.Call, enc Call) {
	c = transport.Call{Epoch: 3, Comm: 7, Seq: seq}
	c.Signature[0] = sig
	c.Put(enc[:])
	return c, enc
}

// What a message is to the call that is on follows from the two numbers and from whether all bytes are equal, and from nothing else.
func TestPlace(t *testing.T) {
	p := Port{ID: 7, Epoch: 3}
	_, early := call(1, 0)
	if got := p.Place(p.Of(5), &early); got != Ahead {
		t.Errorf("before the port is attached: %d", got)
	}
	g := transport.Group{ID: 7, Epoch: 3, Members: []int{4, 2, 0}}
	if err := Check(&g, 2, 6); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(&g, 2, 6); err != nil || p.Rank != 1 || p.Of(0) != 2 || p.Of(1) != -1 {
		t.Fatalf("%v: rank %d, %v", err, p.Rank, p.Index)
	}
	if p.Attach(&g, 2, 6) == nil {
		t.Error("a port is attached twice")
	}
	c, _ := call(5, 1)
	p.Begin(c)
	for _, x := range []struct {
		from int
		seq  uint64
		sig  byte
		want Place
	}{
		{4, 5, 1, Current}, {4, 5, 2, Other}, {0, 4, 1, Late}, {0, 6, 1, Ahead}, {0, 6, 2, Ahead}, {1, 5, 1, Stranger}, {1, 6, 1, Stranger},
	} {
		_, enc := call(x.seq, x.sig)
		if got := p.Place(p.Of(x.from), &enc); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
	_, later := call(6, 1)
	if !p.Strays(0, Stray{Call: later}) || p.Strays(0, Stray{Call: early}) || !p.AnyStray() {
		t.Error("a rank strays once")
	}
	if s, ok := p.Strayed(0); !ok || s.Call != later {
		t.Error("the first other call counts")
	}
	if m := p.Differs(0, &later); m.Theirs.Seq != 6 || m.Mine.Seq != 5 || m.Peer != 0 || m.Rank != 1 {
		t.Errorf("%+v", m)
	}
	p.SawLater(0, &later)
	p.SawLater(0, &early)
	if seen, ok := p.Seen(0); !ok || seen.Seq != 6 {
		t.Errorf("a message that was overtaken is the last one: %+v", seen)
	}
	c.Seq = 6
	if p.Begin(c); p.AnyStray() || p.Place(0, &later) != Current {
		t.Error("the next call begins with what strayed from the last one")
	}
}

// Members that make no sense are refused.
func TestCheck(t *testing.T) {
	for _, members := range [][]int{{}, {0, 1}, {2, 2}, {2, -1}, {2, 6}} {
		if Check(&transport.Group{Members: members}, 2, 6) == nil {
			t.Errorf("%v", members)
		}
	}
}

// Whatever is lent is repaid in the end, up to what is told later, and never more than the limit and one message is under way.
func TestCredit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var from, to Credit
	from.lent, from.owed, to.lent, to.owed = make([]int64, 2), make([]int64, 2), make([]int64, 2), make([]int64, 2)
	var under []int
	for range 20_000 {
		if n := rng.IntN(3 << 20); !from.Full(1) && rng.IntN(3) > 0 {
			from.Lend(1, n)
			under = append(under, n)
		} else if len(under) > 0 {
			if tell := to.Owe(0, under[0]); tell > 0 {
				from.Repaid(1, int64(tell))
			}
			under = under[1:]
		} else if from.Full(1) {
			t.Fatal("all was taken, and the sender may not send")
		}
		sum := to.owed[0]
		for _, n := range under {
			sum += Cost(n)
		}
		if sum != from.lent[1] || sum > Limit+Cost(3<<20) {
			t.Fatalf("%d bytes are under way or not told, the sender counts %d", sum, from.lent[1])
		}
	}
}

// Messages of an old epoch, or of a port that has ended, are told from those that are early; also if a port of the old epoch is open.
func TestTable(t *testing.T) {
	var table Table[*int]
	at := func(epoch uint32) Key { return Key{Epoch: epoch, ID: 1} }
	expect := func(what string, epoch uint32, want Fate) {
		t.Helper()
		if _, got := table.Find(at(epoch)); got != want {
			t.Errorf("%s, epoch %d: %d, want %d", what, epoch, got, want)
		}
	}
	expect("empty", 0, Early)
	table.Put(at(0), new(int))
	expect("a message came", 0, Here)
	if newer, err := table.Begin(at(0)); newer || err != nil {
		t.Error(newer, err)
	}
	expect("next epoch", 1, Early)
	if newer, err := table.Begin(at(1)); !newer || err != nil {
		t.Error(newer, err)
	}
	expect("its port is open", 0, Old)
	if _, err := table.Begin(at(0)); err == nil || table.Get(at(0)) == nil {
		t.Error("an epoch begins again")
	}
	table.Put(at(1), new(int))
	table.End(at(1))
	expect("closed", 1, Ended)
	for i := range uint32(2 * remembered) {
		table.End(Key{ID: 2 + i})
	}
	if len(table.ended) != remembered || len(table.order) != remembered {
		t.Errorf("%d and %d ports that have ended are known", len(table.ended), len(table.order))
	}
}
