package rails

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Which rail a pair of ranks begins with: short messages and those of one piece go there, longer ones over all. Ranks that have
// a GPU begin with the network card that is nearest to it on the PCI bus, as GPU and card then share a switch. Others take turns.

// Near finds the interface that is nearest to the GPU of a rank, among some: the one whose way on the PCI bus has the most bridges in
// common with the GPU's. gpu numbers the GPUs of the host by their addresses, as local ranks do. It is empty if there is no
// GPU, or if no interface is nearer than all others. sys is /sys.
func Near(sys fs.FS, gpu int, names []string) string {
	gpus := gpuPaths(sys)
	if gpu < 0 || len(gpus) == 0 || len(names) < 2 {
		return ""
	}
	here, best, most, tie := gpus[gpu%len(gpus)], "", -1, false
	for _, name := range names {
		way, ok := devicePath(sys, "class/net/"+name+"/device")
		if !ok {
			continue
		}
		n := shared(here, way)
		if n == most {
			tie = true
		} else if n > most {
			best, most, tie = name, n, false
		}
	}
	if tie || most <= 0 {
		return ""
	}
	return best
}

// Affine are the interfaces to use where a host has GPUs: those that are nearest to one of them, as its own network cards are and cards for
// storage and management are not. Without a GPU it is all cards, and without a card all interfaces. sys is /sys.
func Affine(sys fs.FS, names []string) []string {
	ways := map[string][]string{}
	var cards []string
	for _, name := range names {
		if way, ok := devicePath(sys, "class/net/"+name+"/device"); ok {
			ways[name] = way
			cards = append(cards, name)
		}
	}
	gpus := gpuPaths(sys)
	if len(cards) == 0 {
		return names
	}
	if len(gpus) == 0 {
		return cards
	}
	most := make([]int, len(gpus)) // by GPU, how much of its path the nearest cards share
	for i, here := range gpus {
		for _, name := range cards {
			most[i] = max(most[i], shared(here, ways[name]))
		}
	}
	return slices.DeleteFunc(cards, func(name string) bool {
		for i, here := range gpus {
			if shared(here, ways[name]) == most[i] {
				return false
			}
		}
		return true
	})
}

// gpuPaths are the ways on the PCI bus to the display and 3D controllers of NVIDIA and AMD, by address.
func gpuPaths(sys fs.FS) (list [][]string) {
	entries, _ := fs.ReadDir(sys, "bus/pci/devices")
	for _, e := range entries { // sorted by address
		at := "bus/pci/devices/" + e.Name()
		if class, vendor := word(sys, at+"/class"), word(sys, at+"/vendor"); (strings.HasPrefix(class, "0x0302") ||
			strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0380")) && (vendor == "0x10de" || vendor == "0x1002") {
			if way, ok := devicePath(sys, at); ok {
				list = append(list, way)
			}
		}
	}
	return list
}

func word(sys fs.FS, name string) string {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// devicePath is the way to a device: the parts of what its link in sysfs leads to, from the root of the bus on.
func devicePath(sys fs.FS, link string) ([]string, bool) {
	to, err := fs.ReadLink(sys, link)
	if err != nil {
		return nil, false
	}
	parts := strings.Split(path.Clean(path.Join("/", path.Dir(link), to)), "/")
	i := slices.IndexFunc(parts, func(s string) bool { return strings.HasPrefix(s, "pci") })
	if i < 0 {
		return nil, false
	}
	return parts[i:], true
}

// shared is how many parts two ways begin with alike.
func shared(a, b []string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// First is the pair of rails, among those that join two ranks, with which the two begin: the same one on both. Where both know a
// near rail and these are a pair, it is that; else the turn of the two among all.
func First(all []Facts, low, high int, pairs [][2]int, names func(rank, rail int) string) int {
	if a, b := all[low].Near, all[high].Near; a != "" && b != "" {
		if i := slices.IndexFunc(pairs, func(p [2]int) bool { return names(low, p[0]) == a && names(high, p[1]) == b }); i >= 0 {
			return i
		}
	}
	return turn(all, low, high) % len(pairs)
}

// turn numbers the pairs of ranks so that neighbours differ: ranks of one seat on two hosts, which talk in the phases between hosts,
// one rank with many hosts, and hosts in a ring.
func turn(all []Facts, low, high int) int {
	s, h := place(all, low)
	t, k := place(all, high)
	return min(s, t) + h + k*(k-1)/2
}

// place is a rank's number among those of its host, and its host's number.
func place(all []Facts, rank int) (seat, host int) {
	seen := map[string]int{}
	for i := 0; i < rank; i++ {
		if _, ok := seen[all[i].Space]; !ok {
			seen[all[i].Space] = len(seen)
		}
		if all[i].Space == all[rank].Space {
			seat++
		}
	}
	if h, ok := seen[all[rank].Space]; ok {
		return seat, h
	}
	return seat, len(seen)
}
