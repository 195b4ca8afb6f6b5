package rails

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func host(space string, rails ...string) Facts {
	f := Facts{Host: space, Space: space}
	for i := 0; i < len(rails); i += 2 {
		p := netip.MustParsePrefix(rails[i+1])
		f.Rails = append(f.Rails, Rail{Name: rails[i], Addr: p.Addr(), Bits: p.Bits()})
	}
	return f
}

func TestChoose(t *testing.T) {
	a := host("a", "eth0", "10.0.0.1/24", "ib0", "10.1.0.1/24", "docker0", "172.17.0.1/16", "lo", "127.0.0.1/8")
	b := host("b", "eth0", "10.0.0.2/24", "ib0", "10.1.0.2/24", "lo", "127.0.0.1/8")
	for _, c := range []struct {
		name string
		all  []Facts
		cfg  Config
		want string // names, or a part of the error
	}{
		{"one host", []Facts{a, a}, Config{}, "lo"},
		{"one host, all rails", []Facts{a, a}, Config{AllRails: true}, "eth0 ib0 docker0"},
		{"two hosts", []Facts{a, b}, Config{}, "eth0"},
		{"all rails that reach", []Facts{a, b}, Config{AllRails: true}, "eth0 ib0"},
		{"by name", []Facts{a, b}, Config{Interfaces: []string{"ib0"}}, "ib0"},
		{"by prefix, in order", []Facts{a, b}, Config{Interfaces: []string{"10.1.0.0/16", "10.0.0.0/16"}}, "ib0 eth0"},
		{"unknown", []Facts{a, b}, Config{Interfaces: []string{"eth7"}},
			`no interface "eth7" that is up and has an address: it has eth0 (10.0.0.1/24), ib0`},
		{"twice", []Facts{a, b}, Config{Interfaces: []string{"eth0", "10.0.0.0/16"}},
			`no further interface for "10.0.0.0/16": eth0 is named before it`},
		{"none", []Facts{host("a"), b}, Config{}, "it has none"},
	} {
		c.cfg.Token = "t"
		rails, err := Choose(&c.cfg, c.all)
		var got []string
		for _, r := range rails {
			got = append(got, r.Name)
		}
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, %v; want %s", c.name, got, err, c.want)
		}
	}
}

// TestPairs joins rails of the same network, whatever their order, and both
// ends see the same pairs.
func TestPairs(t *testing.T) {
	at := func(prefixes ...string) (out []Address) {
		for _, s := range prefixes {
			p := netip.MustParsePrefix(s)
			out = append(out, Address{netip.AddrPortFrom(p.Addr(), 1), p.Bits()})
		}
		return out
	}
	for _, c := range []struct {
		a, b []Address
		want [][2]int
	}{
		{at("10.0.0.1/24"), at("10.0.0.2/24"), [][2]int{{0, 0}}},
		{at("10.0.0.1/24", "10.1.0.1/24"), at("10.1.0.2/24", "10.0.0.2/24"), [][2]int{{0, 1}, {1, 0}}},
		{at("10.0.0.1/24", "10.1.0.1/24"), at("10.1.0.2/24"), [][2]int{{1, 0}}},
		{at("10.0.0.1/24"), at("10.9.0.1/24"), [][2]int{{0, 0}}},
		{at("10.0.0.1/24"), at("fd00::1/64"), nil},
	} {
		if got := Pairs(c.a, c.b); !slices.Equal(got, c.want) {
			t.Errorf("%v and %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// FuzzBlobs decodes what ranks tell one another when they meet.
func FuzzBlobs(f *testing.F) {
	a := host("a", "eth0", "10.0.0.1/24")
	f.Add(a.Put())
	w := Listening{Streams: 2, At: []Address{{netip.MustParseAddrPort("10.0.0.1:99"), 24}}}
	f.Add(w.Put())
	f.Fuzz(func(t *testing.T, b []byte) {
		var x Facts
		if x.Get(b) == nil {
			for _, r := range x.Rails {
				_ = r.prefix()
			}
		}
		var y Listening
		if y.Get(b) == nil {
			_ = Pairs(y.At, y.At)
		}
	})
}
