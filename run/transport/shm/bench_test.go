//go:build linux

package shm

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

func init() { bodies["echo"] = echo }

// echo is rank 1 of 2: it receives rounds of messages of a size and answers each
// with one of another size, until it is told that there are none.
func echo(c *conform.Child) error {
	e, err := Open(context.Background(), Config{Rank: 1, Size: 2, NoPull: c.Args[0] == "staged",
		Gather: func(_ context.Context, mine []byte) ([][]byte, error) {
			if err := c.Say(mine); err != nil {
				return nil, err
			}
			theirs, err := c.Hear()
			return [][]byte{theirs, mine}, err
		}})
	if err != nil {
		return err
	}
	p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
	if err != nil {
		return err
	}
	p.Begin(transport.Call{Seq: 1}, nil)
	var b []byte
	for {
		var order [24]byte
		if err := p.Recv(0, 1, order[:]); err != nil {
			return err
		}
		rounds, n, answer := binary.LittleEndian.Uint64(order[:]), int(binary.LittleEndian.Uint64(order[8:])),
			int(binary.LittleEndian.Uint64(order[16:]))
		if rounds == 0 {
			return e.Close()
		}
		if len(b) < n {
			b = make([]byte, n)
		}
		for range rounds {
			if err := p.Recv(0, 0, b[:n]); err != nil {
				return err
			}
			if err := p.Send(0, 0, b[:answer]); err != nil {
				return err
			}
		}
	}
}

// BenchmarkPort sends messages to another process and gets an answer of the same
// size up to 4 KiB, an empty one from there on.
func BenchmarkPort(b *testing.B) {
	for _, how := range []string{"lent", "pulled", "staged"} {
		c := conform.Spawn(b, 1, "echo", how)
		e, err := Open(context.Background(), Config{Rank: 0, Size: 2, NoPull: how == "staged",
			Gather: func(_ context.Context, mine []byte) ([][]byte, error) {
				theirs, err := c.Hear(0)
				if err != nil {
					return nil, err
				}
				return [][]byte{mine, theirs}, c.Say(0, mine)
			}})
		if err != nil {
			b.Fatal(err)
		}
		p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		if err != nil {
			b.Fatal(err)
		}
		p.Begin(transport.Call{Seq: 1}, nil)
		buf := make([]byte, 64<<20)
		if how == "lent" {
			if buf, err = e.Alloc(len(buf)); err != nil {
				b.Fatal(err)
			}
		}
		order := func(rounds, n, answer int) {
			var o [24]byte
			for i, x := range []int{rounds, n, answer} {
				binary.LittleEndian.PutUint64(o[8*i:], uint64(x))
			}
			if err := p.Send(1, 1, o[:]); err != nil {
				b.Fatal(err)
			}
		}
		for _, n := range []int{8, 1024, 4032, 65536, 1 << 20, 16 << 20, 64 << 20} {
			if n <= 4096 && how != "lent" {
				continue
			}
			b.Run(fmt.Sprintf("%s/%d", how, n), func(b *testing.B) {
				answer := n
				if n > 4096 {
					answer = 0
				}
				order(b.N, n, answer)
				back := make([]byte, answer)
				b.SetBytes(int64(n + answer))
				b.ResetTimer()
				for range b.N { // known beforehand, as the other process has to know it
					if err := p.Send(1, 0, buf[:n]); err != nil {
						b.Fatal(err)
					}
					if err := p.Recv(1, 0, back); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		order(0, 0, 0)
		if err := c.Wait(); err != nil {
			b.Fatal(err)
		}
		e.Close()
	}
}

// BenchmarkPorts makes a port and closes it, without a message.
func BenchmarkPorts(b *testing.B) {
	e, err := Open(context.Background(), Config{Size: 1, Gather: gathers(1, nil)[0]})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	id := uint32(0)
	for b.Loop() {
		id++
		p, err := e.Port(transport.Group{ID: id, Epoch: 1, Members: []int{0}})
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAlloc gets memory, touches every page of it and gives it back.
func BenchmarkAlloc(b *testing.B) {
	a, err := newArena(1<<30, page)
	if err != nil {
		b.Fatal(err)
	}
	defer a.close()
	for _, n := range []int{256, 64 << 10, 16 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				m, err := a.alloc(n)
				if err != nil {
					b.Fatal(err)
				}
				for i := 0; i < n; i += page {
					m[i] = 1
				}
				if err := a.release(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
