package rails

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// sysfs is a host whose devices hang below PCI switches.
func sysfs(gpus, nics []string) fstest.MapFS {
	sys := fstest.MapFS{}
	for i, at := range gpus {
		name := fmt.Sprintf("0000:%02x:00.0", 0x10+i)
		sys["bus/pci/devices/"+name] = &fstest.MapFile{Data: []byte("../../../devices/" + at + "/" + name), Mode: fs.ModeSymlink}
		sys["devices/"+at+"/"+name+"/class"] = &fstest.MapFile{Data: []byte("0x030200\n")}
		sys["devices/"+at+"/"+name+"/vendor"] = &fstest.MapFile{Data: []byte("0x10de\n")}
	}
	for i, at := range nics {
		name := fmt.Sprintf("0000:%02x:00.0", 0x80+i)
		sys[fmt.Sprintf("class/net/eth%d/device", i)] = &fstest.MapFile{Data: []byte("../../../devices/" + at + "/" + name), Mode: fs.ModeSymlink}
		sys["devices/"+at+"/"+name+"/class"] = &fstest.MapFile{Data: []byte("0x020000\n")}
	}
	return sys
}

func TestNear(t *testing.T) {
	a, b := "pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0"
	far := "pci0000:40/0000:40:01.0"
	names := []string{"eth0", "eth1"}
	for _, x := range []struct {
		what       string
		gpus, nics []string
		gpu        int
		want       string
	}{
		{"the card below its switch", []string{a, b}, []string{a, b}, 0, "eth0"},
		{"and the other", []string{a, b}, []string{a, b}, 1, "eth1"},
		{"more ranks than GPUs", []string{a, b}, []string{a, b}, 2, "eth0"},
		{"the card of its socket", []string{a}, []string{far, b}, 0, "eth1"},
		{"two that are as near", []string{a}, []string{b, b}, 0, ""},
		{"two that are far", []string{far}, []string{a, b}, 0, ""},
		{"no GPU", nil, []string{a, b}, 0, ""},
		{"interfaces that are no cards", []string{a}, nil, 0, ""},
	} {
		if got := Near(sysfs(x.gpus, x.nics), x.gpu, names); got != x.want {
			t.Errorf("%s: %q, want %q", x.what, got, x.want)
		}
	}
}

// Ranks of one seat on two hosts share the rails out evenly, as do the pairs of one rank with many hosts, and near rails come first.
func TestFirst(t *testing.T) {
	var all []Facts
	for h := range 4 {
		for range 4 {
			all = append(all, Facts{Space: fmt.Sprint(h)})
		}
	}
	pairs := [][2]int{{0, 0}, {1, 1}}
	names := func(_, rail int) string { return fmt.Sprint("eth", rail) }
	count := func(what string, list [][2]int, want int) {
		t.Helper()
		n := [2]int{}
		for _, p := range list {
			n[First(all, p[0], p[1], pairs, names)]++
		}
		if min(n[0], n[1]) < want {
			t.Errorf("%s: %v", what, n)
		}
	}
	count("seats of two hosts", [][2]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, 2)
	count("one rank with many hosts", [][2]int{{0, 4}, {0, 8}, {0, 12}}, 1)
	count("hosts in a ring", [][2]int{{0, 4}, {4, 8}, {8, 12}, {0, 12}}, 1)
	all[1].Near, all[5].Near = "eth1", "eth1"
	all[2].Near, all[6].Near = "eth1", "eth1"
	for _, p := range [][2]int{{1, 5}, {2, 6}} {
		if got := First(all, p[0], p[1], pairs, names); got != 1 {
			t.Errorf("ranks %v begin with rail %d, their near one is 1", p, got)
		}
	}
	all[6].Near = "eth0" // not joined with eth1
	if got, want := First(all, 2, 6, pairs, names), turn(all, 2, 6)%2; got != want {
		t.Errorf("rails that are not joined: %d, want %d", got, want)
	}
}

// With GPUs the rails are the cards beside them, not those of storage and management; without GPUs all cards, without cards everything.
func TestAffine(t *testing.T) {
	a, b := "pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0"
	other := "pci0000:40/0000:40:01.0"
	for _, x := range []struct {
		what       string
		gpus, nics []string
		want       string
	}{
		{"a card for each GPU, and one for storage", []string{a, b}, []string{a, b, other}, "eth0 eth1"},
		{"two GPUs that share a card", []string{a, a}, []string{b, a}, "eth1"},
		{"two cards below one switch", []string{a}, []string{a, a, other}, "eth0 eth1"},
		{"cards that are all far", []string{other}, []string{a, b}, "eth0 eth1"},
		{"no GPU", nil, []string{a, b}, "eth0 eth1"},
		{"no card", []string{a}, nil, "eth0 eth1 veth9"},
	} {
		names := []string{"eth0", "eth1", "veth9"}
		if len(x.nics) == 3 {
			names = append(names, "eth2")
		}
		if got := strings.Join(Affine(sysfs(x.gpus, x.nics), names), " "); got != x.want {
			t.Errorf("%s: %q, want %q", x.what, got, x.want)
		}
	}
}
