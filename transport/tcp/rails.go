//go:build linux

package tcp

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/weft-fabric/weft/transport/auth"
)

// rail is an interface of this host that carries streams.
type rail struct {
	name string
	addr netip.Addr
	bits int // of the prefix

	sent, received *atomic.Uint64
}

// facts are what a rank tells about its host.
type facts struct {
	host  string // equal on ranks that share cores
	space string // equal on ranks that share interfaces
	rails []rail
}

type factsWire struct {
	Host, Space string
	Rails       []railWire
}

type railWire struct {
	Name   string
	Prefix netip.Prefix
}

func (f *facts) put() []byte {
	w := factsWire{Host: f.host, Space: f.space}
	for _, r := range f.rails {
		w.Rails = append(w.Rails, railWire{r.name, netip.PrefixFrom(r.addr, r.bits)})
	}
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // strings and prefixes always encode
	}
	return b
}

func (f *facts) get(b []byte) error {
	var w factsWire
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("facts about its host: %w", err)
	}
	*f = facts{host: w.Host, space: w.Space}
	for _, r := range w.Rails {
		f.rails = append(f.rails, rail{name: r.Name, addr: r.Prefix.Addr(), bits: r.Prefix.Bits()})
	}
	return nil
}

// lookAround finds this host's interfaces that are up, loopback last.
func lookAround() (*facts, error) {
	f := &facts{}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	name, _ := os.Hostname()
	f.host = strings.TrimSpace(string(boot)) + " " + name
	space, _ := os.Readlink("/proc/self/ns/net")
	f.space = f.host + " " + space
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var loop []rail
	for _, l := range links {
		if l.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := l.Addrs()
		if err != nil {
			continue
		}
		best := rail{name: l.Name}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || p.Addr().IsLinkLocalUnicast() {
				continue
			}
			// One address for each interface, IPv4 if there is one.
			if !best.addr.IsValid() || (p.Addr().Is4() && !best.addr.Is4()) {
				best.addr, best.bits = p.Addr(), p.Bits()
			}
		}
		switch {
		case !best.addr.IsValid():
		case best.addr.IsLoopback():
			loop = append(loop, best)
		default:
			f.rails = append(f.rails, best)
		}
	}
	f.rails = append(f.rails, loop...)
	return f, nil
}

// railCounters gives rails their counters.
func railCounters(rails []rail) {
	for i := range rails {
		rails[i].sent, rails[i].received = new(atomic.Uint64), new(atomic.Uint64)
	}
}

func (r *rail) prefix() netip.Prefix { return netip.PrefixFrom(r.addr, r.bits).Masked() }

// choose picks the interfaces of this rank.
func choose(cfg *Config, all []facts) ([]rail, error) {
	mine := all[cfg.Rank]
	out := []rail{}
	add := func(r rail) {
		if !slices.ContainsFunc(out, func(o rail) bool { return o.addr == r.addr }) {
			out = append(out, r)
			railCounters(out[len(out)-1:])
		}
	}
	together := !slices.ContainsFunc(all, func(f facts) bool { return f.space != mine.space })
	switch {
	case len(cfg.Interfaces) > 0:
		for _, want := range cfg.Interfaces {
			n := len(out)
			p, err := netip.ParsePrefix(want)
			for _, r := range mine.rails {
				if r.name == want || (err == nil && p.Contains(r.addr)) {
					add(r)
				}
			}
			if len(out) == n {
				return nil, fmt.Errorf("rank %d has no interface %q that is up and has an address: it has %s", cfg.Rank, want, names(mine.rails))
			}
		}
	case together && !cfg.AllRails:
		for _, r := range mine.rails {
			if r.addr.IsLoopback() && len(out) == 0 {
				add(r)
			}
		}
	}
	if len(out) == 0 {
		for _, r := range mine.rails {
			if r.addr.IsLoopback() {
				continue
			}
			// An interface reaches the peers if each has one in its network.
			reaches := !slices.ContainsFunc(all, func(f facts) bool {
				return !slices.ContainsFunc(f.rails, func(o rail) bool { return o.prefix() == r.prefix() })
			})
			if reaches && (cfg.AllRails || len(out) == 0) {
				add(r)
			}
		}
	}
	if len(out) == 0 {
		// No common network: the way to the first rank of another host, as this
		// host's routes have it.
		for _, f := range all {
			if f.space == mine.space {
				continue
			}
			for _, o := range f.rails {
				if o.addr.IsLoopback() {
					continue
				}
				c, err := net.Dial("udp", netip.AddrPortFrom(o.addr, 9).String())
				if err != nil {
					continue
				}
				from := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
				c.Close()
				for _, r := range mine.rails {
					if r.addr == from && len(out) == 0 {
						add(r)
					}
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("rank %d has no interface that reaches the other ranks: it has %s", cfg.Rank, names(mine.rails))
	}
	for _, r := range out {
		if err := auth.CheckToken(cfg.Token, r.addr.String(), cfg.NoToken); err != nil {
			return nil, fmt.Errorf("interface %s: %w", r.name, err)
		}
	}
	return out, nil
}

func names(rails []rail) string {
	var s []string
	for _, r := range rails {
		s = append(s, fmt.Sprintf("%s (%s)", r.name, netip.PrefixFrom(r.addr, r.bits)))
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

// place is where a rank listens on a rail.
type place struct {
	addr netip.AddrPort
	bits int
}

// places are what a rank tells about where it listens.
type places struct {
	world   [16]byte
	streams int
	at      []place
}

type placesWire struct {
	World   [16]byte
	Streams int
	At      []netip.AddrPort
	Bits    []int
}

func (p *places) put() []byte {
	w := placesWire{World: p.world, Streams: p.streams}
	for _, a := range p.at {
		w.At, w.Bits = append(w.At, a.addr), append(w.Bits, a.bits)
	}
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // numbers and addresses always encode
	}
	return b
}

func (p *places) get(b []byte) error {
	var w placesWire
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("where it listens: %w", err)
	}
	if len(w.At) == 0 || len(w.At) != len(w.Bits) || len(w.At) > 256 {
		return fmt.Errorf("it listens at %d addresses with %d prefixes", len(w.At), len(w.Bits))
	}
	*p = places{world: w.World, streams: w.Streams}
	for i := range w.At {
		p.at = append(p.at, place{w.At[i], w.Bits[i]})
	}
	return nil
}

// pairs says which rails of two ranks are connected, the first's and the
// second's: those of a common network first, the others in order.
func pairs(a, b []place) [][2]int {
	var out [][2]int
	usedA, usedB := make([]bool, len(a)), make([]bool, len(b))
	match := func(same func(x, y place) bool) {
		for i, x := range a {
			for j, y := range b {
				if !usedA[i] && !usedB[j] && same(x, y) {
					usedA[i], usedB[j] = true, true
					out = append(out, [2]int{i, j})
				}
			}
		}
	}
	match(func(x, y place) bool {
		return x.bits == y.bits && netip.PrefixFrom(x.addr.Addr(), x.bits).Masked() == netip.PrefixFrom(y.addr.Addr(), y.bits).Masked()
	})
	match(func(x, y place) bool { return x.addr.Addr().Is4() == y.addr.Addr().Is4() })
	return out
}
