package comm

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/comm/choice"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/transport"
)

// measure finds out what the links cost, or what they cost last time.
func (w *world) measure(ctx context.Context, c *Comm, gather transport.Gather) error {
	if c.Size() == 1 {
		w.links = cost.Links{}
		return nil
	}
	if w.ep.Can().OneProcess {
		w.links = goroutines(c.Size())
	} else if err := w.find(ctx, c, gather); err != nil {
		return err
	}
	w.findInside()
	if w.cfg.Explain != nil && c.Rank() == 0 {
		return c.Explain(w.cfg.Explain)
	}
	return nil
}

// find measures the links between processes, or takes what was measured before.
func (w *world) find(ctx context.Context, c *Comm, gather transport.Gather) error {
	found, err := w.query(ctx, c.group.Members, gather)
	if err != nil {
		return err
	}
	if found.Note != "" && w.cfg.Log != nil {
		w.cfg.Log.Info(found.Note)
	}
	if w.cfg.Explain != nil && c.Rank() == 0 {
		if _, err := fmt.Fprintln(w.cfg.Explain, "links "+found.Origin); err != nil {
			return err
		}
	}
	w.links, w.key = found.Links, found.Key
	if len(found.Made) > 0 {
		w.made = choice.NewPrograms(found.Made)
	}
	return w.floor()
}

// query finds what the links between the ranks of the endpoint cost.
func (w *world) query(ctx context.Context, members []int, gather transport.Gather) (choice.Found, error) {
	port, err := w.ep.Port(transport.Group{Members: members, Words: calls.Words{}})
	if err != nil {
		return choice.Found{}, err
	}
	defer func() { _ = port.Close() }()
	dir, err := choice.Dir()
	if err != nil {
		dir = "" // nowhere to keep them: they are measured every time
	}
	return choice.Find(ctx, choice.Query{Port: port, Call: transport.Call{Seq: 1},
		Can: w.ep.Can(), Rank: w.ep.Rank(), Hosts: w.hosts, Shared: w.shared, Gather: gather, Dir: dir, Fresh: w.cfg.Measure, Known: w.cfg.Links,
		Busy: 1.3})
}

// floor refuses links that are slower than the configuration demands.
func (w *world) floor() error {
	if w.cfg.Floor == 0 {
		return nil
	}
	for _, x := range []struct {
		name string
		link cost.Link
	}{{"of a host", w.links.Near}, {"of different hosts", w.links.Far}} {
		if r := reached(x.link); r > 0 && r < w.cfg.Floor {
			return fmt.Errorf("ranks %s reach %s over %s, and the floor is %s: find out why the links are slow, or lower the floor (WEFT_FLOOR, or bench --floor)",
				x.name, r, w.ep.Can().Name, w.cfg.Floor)
		}
	}
	return nil
}

// reached is the rate that a link had when it was measured; 0 if it was not.
func reached(l cost.Link) unit.Rate {
	if l.Beta <= 0 {
		return 0
	}
	return unit.Rate(1e6 / max(l.Beta, l.Wire))
}

// goroutines are links between ranks of one process, as measured on a server of
// 2023 with a core a rank: worlds of goroutines are made often, for tests above
// all, and start at once.
func goroutines(n int) cost.Links {
	return cost.Links{Kind: "mem", Ranks: n, Cores: runtime.GOMAXPROCS(0), Sync: 0.5,
		Paces: []cost.Pace{{Traffic: 1 << 20, Byte: 2e-5}, {Traffic: 16 << 20, Byte: 4e-5}, {Traffic: 1 << 30, Byte: 1e-4}},
		Near:  cost.Link{Alpha: 0.5, Post: 0.2, Beta: 5e-5}}
}

// Explain writes the table of choices: which program runs a call of which size, what it is expected to take, and why.
func (c *Comm) Explain(w io.Writer) error {
	if c.Size() == 1 {
		_, err := fmt.Fprintln(w, "one rank: every call is a copy at most")
		return err
	}
	if c.world.cfg.Canonical {
		return c.library.table().ExplainCanonical(w)
	}
	if err := c.library.table().Explain(w); err != nil {
		return err
	}
	for _, m := range c.library.made().All() {
		sizes := fmt.Sprintf("from %s on", unit.Bytes(m.From))
		if m.To < 1<<62 {
			sizes = fmt.Sprintf("from %s to below %s", unit.Bytes(m.From), unit.Bytes(m.To+1))
		}
		if _, err := fmt.Fprintf(w, "made for these links: %s %s: %s; when it was made %s, and %s took %s\n",
			m.Op, sizes, m.Form, micros(m.Took), m.Instead, micros(m.Would)); err != nil {
			return err
		}
	}
	return nil
}

// Made is a program that was made for the links of certain ranks; see KeepMade.
type Made = choice.Made

// KeepMade keeps programs for worlds like this one: as many ranks, on the same hosts, over the same transport. They run from the
// next Join on, each for the sizes that it is for, where a call does not ask for another program or for canonical sums. It is for
// rank 0 of the world; an empty list takes them away. The file's path is returned.
func (c *Comm) KeepMade(list []Made) (string, error) {
	if c.Rank() != 0 || c.world.key.Ranks != c.Size() {
		return "", fmt.Errorf("programs are kept by rank 0 of a whole world of processes; this is rank %d of %d", c.Rank(), c.Size())
	}
	dir, err := choice.Dir()
	if err != nil {
		return "", err
	}
	return choice.KeepMade(dir, c.world.key, list)
}
