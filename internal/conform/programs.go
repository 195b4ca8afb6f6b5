package conform

import (
	"fmt"
	"math/rand/v2"

	"github.com/weft-fabric/weft/run/transport"
)

// ringOfTakes: every rank sends to the next and takes from the one before, as a
// ring of reductions does: what will be taken cannot be announced.
func ringOfTakes(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	me, size := e.Rank(), e.Size()
	next, before := (me+1)%size, (me+size-1)%size
	registered, err := e.Verbs().Alloc(1 << 20)
	if err != nil {
		return err
	}
	plain := make([]byte, 1<<20)
	for k := range 40 {
		n := []int{4000, 65536, 300001, 1 << 20}[k%4]
		out := plain[:n]
		if k%3 == 0 {
			out = registered[:n]
		}
		fill(out, number(me, next, 0, k))
		if err := p.Send(next, 0, out); err != nil {
			return fmt.Errorf("send %d: %w", k, err)
		}
		clear(out)
		got := make([]byte, 0, n)
		if err := p.Take(before, 0, n, func(piece []byte) { got = append(got, piece...) }); err != nil {
			return fmt.Errorf("take %d: %w", k, err)
		}
		if err := same(got, number(before, me, 0, k)); err != nil {
			return err
		}
	}
	return closed(p, e, registered)
}

// randomPrograms: ranks go through a list of messages that all of them know, each
// channel in a goroutine of its own, and do their part of it in order. Whether
// a message is announced, how long before, and how it is received is up to the
// receiver's dice.
func randomPrograms(e transport.Endpoint) error {
	for seed := range uint64(6) {
		if err := randomProgram(e, seed); err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	return nil
}

type step struct{ from, to, n int }

func randomProgram(e transport.Endpoint, seed uint64) error {
	const channels, length, most = 3, 120, 1 << 18
	p, err := begun(e, 1000+uint32(seed))
	if err != nil {
		return err
	}
	me := e.Rank()
	err = Together(channels, func(c int) error {
		all := rand.New(rand.NewPCG(seed, uint64(c)))
		list := make([]step, length)
		for k := range list {
			s := &list[k]
			s.from = all.IntN(e.Size())
			s.to = (s.from + 1 + all.IntN(e.Size()-1)) % e.Size()
			s.n = all.IntN(1 + 1<<all.IntN(18))
		}
		own := rand.New(rand.NewPCG(seed, uint64(100+10*me+c)))
		registered, err := e.Verbs().Alloc(most)
		if err != nil {
			return err
		}
		announced := map[int][]byte{} // by step
		next := map[int]int{}         // the step after the last announced one, by sender
		for k, s := range list {
			// Some of what is to come is announced, in the order of its way.
			for own.IntN(3) == 0 {
				from := own.IntN(e.Size())
				j := max(next[from], k)
				for j < length && (list[j].from != from || list[j].to != me) {
					j++
				}
				next[from] = j
				if j == length {
					break
				}
				announced[j] = make([]byte, list[j].n)
				p.Expect(from, c, announced[j])
				next[from] = j + 1
			}
			switch me {
			case s.from:
				b := make([]byte, s.n)
				if own.IntN(2) == 0 {
					b = registered[:s.n]
				}
				fill(b, number(s.from, s.to, c, k))
				if err := p.Send(s.to, c, b); err != nil {
					return fmt.Errorf("channel %d step %d: send %d bytes to %d: %w", c, k, s.n, s.to, err)
				}
				clear(b)
			case s.to:
				b, was := announced[k]
				if !was {
					b = make([]byte, s.n)
					next[s.from] = max(next[s.from], k+1)
				}
				if !was && own.IntN(2) == 0 {
					at := 0
					err = p.Take(s.from, c, s.n, func(piece []byte) { at += copy(b[at:], piece) })
				} else {
					err = p.Recv(s.from, c, b)
				}
				if err != nil {
					return fmt.Errorf("channel %d step %d: receive %d bytes from %d: %w", c, k, s.n, s.from, err)
				}
				if err := same(b, number(s.from, s.to, c, k)); err != nil {
					return fmt.Errorf("channel %d step %d: %w", c, k, err)
				}
			}
		}
		return e.Verbs().Free(registered)
	})
	if err != nil {
		return err
	}
	return p.Close()
}
