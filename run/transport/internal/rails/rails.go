// Package rails finds the interfaces over which ranks of different hosts reach one
// another.
package rails

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/run/transport/auth"
)

// Rail is an interface of this host that carries streams.
type Rail struct {
	Name string
	Addr netip.Addr
	Bits int // of the prefix
	MTU  int // of the interface
}

// Facts are what a rank tells about its host.
type Facts struct {
	Host  string // equal on ranks that share cores
	Space string // equal on ranks that share interfaces
	Rails []Rail
	Near  string // the interface that is nearest to the rank's GPU; empty if there is none
}

type factsWire struct {
	Host, Space string
	Rails       []railWire
	Near        string `json:",omitzero"`
}

type railWire struct {
	Name   string
	Prefix netip.Prefix
	MTU    int `json:",omitzero"`
}

func (f *Facts) Put() []byte {
	w := factsWire{Host: f.Host, Space: f.Space, Near: f.Near}
	for _, r := range f.Rails {
		w.Rails = append(w.Rails, railWire{r.Name, netip.PrefixFrom(r.Addr, r.Bits), r.MTU})
	}
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // strings and prefixes always encode
	}
	return b
}

func (f *Facts) Get(b []byte) error {
	var w factsWire
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("facts about its Host: %w", err)
	}
	*f = Facts{Host: w.Host, Space: w.Space, Near: w.Near}
	for _, r := range w.Rails {
		f.Rails = append(f.Rails, Rail{Name: r.Name, Addr: r.Prefix.Addr(), Bits: r.Prefix.Bits(), MTU: r.MTU})
	}
	return nil
}

// LookAround finds this host's interfaces that are up, loopback last, and which of them is nearest to a GPU. With discover it is
// only those that Affine says.
func LookAround(gpu int, discover bool) (*Facts, error) {
	f := &Facts{}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	name, _ := os.Hostname()
	f.Host = strings.TrimSpace(string(boot)) + " " + name
	space, _ := os.Readlink("/proc/self/ns/net")
	f.Space = f.Host + " " + space
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var loop []Rail
	for _, l := range links {
		if l.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := l.Addrs()
		if err != nil {
			continue
		}
		best := Rail{Name: l.Name, MTU: l.MTU}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || p.Addr().IsLinkLocalUnicast() {
				continue
			}
			// One address for each interface, IPv4 if there is one.
			if !best.Addr.IsValid() || (p.Addr().Is4() && !best.Addr.Is4()) {
				best.Addr, best.Bits = p.Addr(), p.Bits()
			}
		}
		switch {
		case !best.Addr.IsValid():
		case best.Addr.IsLoopback():
			loop = append(loop, best)
		default:
			f.Rails = append(f.Rails, best)
		}
	}
	var names []string
	for _, r := range f.Rails {
		names = append(names, r.Name)
	}
	if discover {
		keep := Affine(os.DirFS("/sys"), names)
		f.Rails = slices.DeleteFunc(f.Rails, func(r Rail) bool { return !slices.Contains(keep, r.Name) })
		names = keep
	}
	f.Near = Near(os.DirFS("/sys"), gpu, names)
	f.Rails = append(f.Rails, loop...)
	return f, nil
}

func (r *Rail) prefix() netip.Prefix { return netip.PrefixFrom(r.Addr, r.Bits).Masked() }

// Config says whose interfaces are looked for, and which are wanted.
type Config struct {
	Rank       int
	Interfaces []string // names or prefixes; empty for those that reach the peers
	AllRails   bool
	Token      string
	NoToken    bool
}

// Choose picks the interfaces of this rank: those that were asked for; else loopback
// if all ranks share this host's network; else those that reach all peers; else the
// one that leads to another host.
func Choose(cfg *Config, all []Facts) ([]Rail, error) {
	mine := all[cfg.Rank]
	out, err := named(cfg, &mine)
	if err != nil {
		return nil, err
	}
	if len(out) == 0 && !cfg.AllRails && !slices.ContainsFunc(all, func(f Facts) bool { return f.Space != mine.Space }) {
		if i := slices.IndexFunc(mine.Rails, func(r Rail) bool { return r.Addr.IsLoopback() }); i >= 0 {
			out = add(out, mine.Rails[i])
		}
	}
	if len(out) == 0 {
		out = reaching(cfg, &mine, all)
	}
	if len(out) == 0 {
		out = routed(&mine, all)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("rank %d has no interface that reaches the other ranks: it has %s", cfg.Rank, names(mine.Rails))
	}
	for _, r := range out {
		if err := auth.CheckToken(cfg.Token, r.Addr.String(), cfg.NoToken); err != nil {
			return nil, fmt.Errorf("interface %s: %w", r.Name, err)
		}
	}
	return out, nil
}

// add appends a rail whose address is not there yet.
func add(list []Rail, r Rail) []Rail {
	if slices.ContainsFunc(list, func(o Rail) bool { return o.Addr == r.Addr }) {
		return list
	}
	return append(list, r)
}

// ErrNone is an interface that was asked for and is not there.
var ErrNone = errors.New("no such interface")

type none struct{ text string }

func (e none) Error() string        { return e.text }
func (e none) Is(target error) bool { return target == ErrNone }

// named are the interfaces that were asked for, in that order.
func named(cfg *Config, mine *Facts) (out []Rail, err error) {
	for _, want := range cfg.Interfaces {
		n, twice := len(out), ""
		p, err := netip.ParsePrefix(want)
		for _, r := range mine.Rails {
			if r.Name == want || (err == nil && p.Contains(r.Addr)) {
				if next := add(out, r); len(next) == len(out) {
					twice = r.Name
				} else {
					out = next
				}
			}
		}
		if len(out) == n && twice != "" {
			return nil,
				none{fmt.Sprintf("rank %d has no further interface for %q: %s is named before it; name each rail once", cfg.Rank, want, twice)}
		}
		if len(out) == n {
			return nil, none{fmt.Sprintf("rank %d has no interface %q that is up and has an address: it has %s", cfg.Rank, want, names(mine.Rails))}
		}
	}
	return out, nil
}

// reaching are the interfaces in whose network every rank has one: all of them, or
// the first.
func reaching(cfg *Config, mine *Facts, all []Facts) (out []Rail) {
	for _, r := range mine.Rails {
		lacking := slices.ContainsFunc(all, func(f Facts) bool {
			return !slices.ContainsFunc(f.Rails, func(o Rail) bool { return o.prefix() == r.prefix() })
		})
		if !r.Addr.IsLoopback() && !lacking && (cfg.AllRails || len(out) == 0) {
			out = add(out, r)
		}
	}
	return out
}

// routed is the interface that leads to another host, as this host's routes have it.
func routed(mine *Facts, all []Facts) []Rail {
	for _, f := range all {
		if f.Space == mine.Space {
			continue
		}
		for _, o := range f.Rails {
			if o.Addr.IsLoopback() {
				continue
			}
			c, err := net.Dial("udp", netip.AddrPortFrom(o.Addr, 9).String())
			if err != nil {
				continue
			}
			from := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			c.Close()
			if i := slices.IndexFunc(mine.Rails, func(r Rail) bool { return r.Addr == from }); i >= 0 {
				return []Rail{mine.Rails[i]}
			}
		}
	}
	return nil
}

func names(rails []Rail) string {
	var s []string
	for _, r := range rails {
		s = append(s, fmt.Sprintf("%s (%s)", r.Name, netip.PrefixFrom(r.Addr, r.Bits)))
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

// Address is where a rank listens on a Rail.
type Address struct {
	Addr netip.AddrPort
	Bits int
}

// Listening is what a rank tells about where it listens.
type Listening struct {
	World   [16]byte
	Streams int
	At      []Address
}

type listeningWire struct {
	World   [16]byte
	Streams int
	At      []netip.AddrPort
	Bits    []int
}

func (p *Listening) Put() []byte {
	w := listeningWire{World: p.World, Streams: p.Streams}
	for _, a := range p.At {
		w.At, w.Bits = append(w.At, a.Addr), append(w.Bits, a.Bits)
	}
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // numbers and addresses always encode
	}
	return b
}

// Get decodes a peer's addresses. It trusts nothing: lengths must match, and there are at most 256.
func (p *Listening) Get(b []byte) error {
	var w listeningWire
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("where it listens: %w", err)
	}
	if len(w.At) == 0 || len(w.At) != len(w.Bits) || len(w.At) > 256 {
		return fmt.Errorf("it listens at %d addresses with %d prefixes", len(w.At), len(w.Bits))
	}
	*p = Listening{World: w.World, Streams: w.Streams}
	for i := range w.At {
		p.At = append(p.At, Address{w.At[i], w.Bits[i]})
	}
	return nil
}

// Pairs says which rails of two ranks are connected, the first's and the
// second's: those of a common network first, the others in order.
func Pairs(a, b []Address) [][2]int {
	var out [][2]int
	usedA, usedB := make([]bool, len(a)), make([]bool, len(b))
	match := func(same func(x, y Address) bool) {
		for i, x := range a {
			for j, y := range b {
				if !usedA[i] && !usedB[j] && same(x, y) {
					usedA[i], usedB[j] = true, true
					out = append(out, [2]int{i, j})
				}
			}
		}
	}
	match(func(x, y Address) bool {
		return x.Bits == y.Bits && netip.PrefixFrom(x.Addr.Addr(), x.Bits).Masked() == netip.PrefixFrom(y.Addr.Addr(), y.Bits).Masked()
	})
	match(func(x, y Address) bool { return x.Addr.Addr().Is4() == y.Addr.Addr().Is4() })
	return out
}
