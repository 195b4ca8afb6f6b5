package web

import (
	"cmp"
	"slices"
	"strings"
)

// topologyView has the hosts with their slots, and the groups of ranks that communicate in this epoch.
type topologyView struct {
	Within   string      `json:"within"`   // link between ranks of a host: shm, tcp or mem
	Between  string      `json:"between"`  // link between hosts
	Hosts    []hostView  `json:"hosts"`    // hosts in order
	Replicas int         `json:"replicas"` // data-parallel replicas
	Tensor   int         `json:"tensor"`   // tensor-parallel ranks
	Stages   int         `json:"stages"`   // pipeline stages
	Groups   []groupView `json:"groups"`   // groups of ranks that communicate
}

// hostView is a host with its slots.
type hostView struct {
	Host string `json:"host"` // name
	IDs  []int  `json:"ids"`  // slots on it
}

// groupView is a group of ranks that communicate.
type groupView struct {
	Kind string `json:"kind"` // tensor (share every layer), pipeline (stages in order) or data (replicas of the same part)
	IDs  []int  `json:"ids"`  // slots of the group
	Link string `json:"link"` // the group's slowest kind of link
}

// takesPart says whether the rank has a place in the groups, and was not left out or suspected.
func (r *Rank) takesPart() bool {
	return r.Rank >= 0 && r.Replica >= 0 && r.State != Left && r.State != Suspect
}

// topology says which ranks are on a host, and which form the groups of each kind of parallelism.
func (b *Board) topology() *topologyView {
	v := &topologyView{Within: "shm", Between: "tcp", Hosts: []hostView{}, Groups: []groupView{}}
	switch words := strings.FieldsFunc(strings.ToLower(b.job.Transport), func(r rune) bool { return r < 'a' || r > 'z' }); {
	case slices.Contains(words, "shm"):
	case slices.Contains(words, "mem"):
		v.Within = "mem"
	case slices.Contains(words, "tcp"):
		v.Within = "tcp"
	}
	hosts := map[string]int{}
	var in []Rank
	for _, id := range b.ids {
		r := b.ranks[id].Rank
		at, known := hosts[r.Host]
		if !known {
			at = len(v.Hosts)
			hosts[r.Host] = at
			v.Hosts = append(v.Hosts, hostView{Host: r.Host})
		}
		v.Hosts[at].IDs = append(v.Hosts[at].IDs, id)
		if r.takesPart() {
			in = append(in, r)
			v.Replicas, v.Tensor, v.Stages = max(v.Replicas, r.Replica+1), max(v.Tensor, r.Tensor+1), max(v.Stages, r.Stage+1)
		}
	}
	slices.SortStableFunc(in, func(a, b Rank) int { return cmp.Compare(a.Rank, b.Rank) })
	v.group(in, "tensor", func(r Rank) [2]int { return [2]int{r.Replica, r.Stage} })
	v.group(in, "pipeline", func(r Rank) [2]int { return [2]int{r.Replica, r.Tensor} })
	v.group(in, "data", func(r Rank) [2]int { return [2]int{r.Stage, r.Tensor} })
	return v
}

// group adds the sets of two and more ranks that have the same key.
func (v *topologyView) group(in []Rank, kind string, key func(Rank) [2]int) {
	at := map[[2]int]int{}
	var sets [][]Rank
	for _, r := range in {
		k := key(r)
		i, known := at[k]
		if !known {
			i = len(sets)
			at[k] = i
			sets = append(sets, nil)
		}
		sets[i] = append(sets[i], r)
	}
	for _, set := range sets {
		if len(set) < 2 {
			continue
		}
		g := groupView{Kind: kind, Link: v.Within}
		for _, r := range set {
			g.IDs = append(g.IDs, r.ID)
			if r.Host != set[0].Host {
				g.Link = v.Between
			}
		}
		v.Groups = append(v.Groups, g)
	}
}
