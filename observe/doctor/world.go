package doctor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"path"
	"slices"
	"strings"
)

// world is the ranks of one job with their dumps.
type world struct {
	dumps  map[int]*Dump
	groups map[string]*Group
	keys   []string
	size   int
	name   string
	cut    map[int]*Dump // dumps that end before anything unfinished: they tell only what was finished
	guess  map[int][]int // ranks of dumps that nothing tells apart, each with those that it may be
}

// groupKey tells groups apart whose names are the same. Of a large one it holds a digest of the members: dumps of a thousand ranks
// name each a thousand.
func groupKey(name string, ranks []int) string {
	const shown = 64
	if len(ranks) <= shown {
		return name + fmt.Sprint(ranks)
	}
	h := fnv.New64a()
	for _, r := range ranks {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(r)))
	}
	return fmt.Sprintf("%s%d and %d more, %x", name, ranks[:shown], len(ranks)-shown, h.Sum64())
}

// placeCut gives dumps without groups to the only job of their folder: a folder of one job may hold some that were cut.
func placeCut(parts map[string][]*Dump) {
	for key, list := range parts {
		dir, sig, _ := strings.Cut(key, "|")
		if sig != "" {
			continue
		}
		var homes []string
		for k := range parts {
			if d, s, _ := strings.Cut(k, "|"); d == dir && s != "" {
				homes = append(homes, k)
			}
		}
		if len(homes) == 1 {
			parts[homes[0]] = append(parts[homes[0]], list...)
			delete(parts, key)
		}
	}
}

// worlds sorts dumps into jobs and finds out whose each dump is.
func worlds(dumps []Dump) []*world {
	parts := map[string][]*Dump{}
	for i := range dumps {
		d := &dumps[i]
		key := path.Dir(d.File) + "|" + signature(d)
		parts[key] = append(parts[key], d)
	}
	placeCut(parts)
	// Dumps of one job may lie in a folder a host.
	if merged := mergeFolders(parts); merged != nil {
		parts = merged
	}
	var out []*world
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		for _, part := range splitTwice(parts[key]) {
			dir, _, _ := strings.Cut(key, "|")
			w := newWorld(part)
			w.name = dir
			out = append(out, w)
		}
	}
	return out
}

// mergeFolders joins folders whose dumps have the same world and no rank twice.
func mergeFolders(parts map[string][]*Dump) map[string][]*Dump {
	bySig := map[string][]string{}
	for key := range parts {
		_, sig, _ := strings.Cut(key, "|")
		bySig[sig] = append(bySig[sig], key)
	}
	out := map[string][]*Dump{}
	for sig, keys := range bySig {
		slices.Sort(keys)
		var all []*Dump
		for _, k := range keys {
			all = append(all, parts[k]...)
		}
		if sig != "" && len(keys) > 1 && len(splitTwice(all)) == 1 {
			out[keys[0]] = all
			continue
		}
		for _, k := range keys {
			out[k] = parts[k]
		}
	}
	return out
}

// signature tells jobs of one folder apart: the members of the largest group.
func signature(d *Dump) string {
	var most []int
	for _, g := range d.Groups {
		if len(g.Ranks) > len(most) {
			most = g.Ranks
		}
	}
	if len(most) == 0 {
		return ""
	}
	return fmt.Sprintf("%d", len(most))
}

// splitTwice splits dumps of which two claim one rank: those whose names begin
// alike belong together.
func splitTwice(list []*Dump) [][]*Dump {
	seen := map[int]int{}
	twice := false
	for _, d := range list {
		if c := possible(d); len(c) == 1 {
			seen[c[0]]++
			twice = twice || seen[c[0]] > 1
		}
	}
	if !twice {
		return [][]*Dump{list}
	}
	byName := map[string][]*Dump{}
	for _, d := range list {
		base := strings.TrimRight(path.Base(d.File), "0123456789")
		if i := strings.LastIndexAny(path.Base(d.File), "0123456789"); i >= 0 && base == path.Base(d.File) {
			base = strings.TrimRight(path.Base(d.File)[:i+1], "0123456789")
		}
		key := path.Dir(d.File) + "/" + base
		byName[key] = append(byName[key], d)
	}
	var out [][]*Dump
	for _, k := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, byName[k])
	}
	return out
}

// possible lists the ranks that a dump can be of: it knows only groups that its
// own rank belongs to, so the members that all its groups share.
func possible(d *Dump) []int {
	if d.Rank >= 0 {
		return []int{d.Rank}
	}
	var in []int
	for _, g := range d.Groups {
		if len(g.Ranks) == 0 {
			continue
		}
		if in == nil {
			in = slices.Clone(g.Ranks)
			continue
		}
		in = slices.DeleteFunc(in, func(r int) bool { return !slices.Contains(g.Ranks, r) })
	}
	for i := range d.Entries {
		if len(in) >= 2 && d.Entries[i].P2P {
			in = d.ownerOf(&d.Entries[i], in)
		}
	}
	return in
}

// ownerOf narrows the ranks that a dump can be of by a message in it: a send 0->3 of a group is of member 0, a recv 3<-0 of
// member 3.
func (d *Dump) ownerOf(e *Op, in []int) []int {
	self := e.From
	if strings.HasPrefix(e.Name, "recv") {
		self = e.To
	}
	for _, g := range d.Groups {
		if g.Name == e.Group && self >= 0 && self < len(g.Ranks) && slices.Contains(in, g.Ranks[self]) {
			return []int{g.Ranks[self]}
		}
	}
	return in
}

// newWorld puts the dumps of one job together: which rank each is of, and which groups there are.
func newWorld(list []*Dump) *world {
	w := &world{dumps: map[int]*Dump{}, groups: map[string]*Group{}, cut: map[int]*Dump{}, guess: map[int][]int{}}
	w.assign(list)
	w.complete()
	for _, r := range w.ranks() {
		for i := range w.dumps[r].Groups {
			w.enter(&w.dumps[r].Groups[i])
		}
		w.size = max(w.size, r+1)
	}
	slices.SortFunc(w.keys, natural)
	// A dump that was cut before its operations says nothing of them, unless its
	// status does.
	for _, r := range w.ranks() {
		d := w.dumps[r]
		if d.Truncated && !d.Idle && !slices.ContainsFunc(d.Entries, func(o Op) bool { return !o.Done }) {
			delete(w.dumps, r)
			w.cut[r] = d
		}
	}
	return w
}

// assign finds the rank of each dump: those that are certain first, then those that the
// file's name says, then what is left over, of which guess has the choice.
func (w *world) assign(list []*Dump) {
	var open []*Dump
	for _, d := range list {
		if c := possible(d); len(c) == 1 && w.dumps[c[0]] == nil {
			w.dumps[c[0]] = d
		} else {
			open = append(open, d)
		}
	}
	var rest []*Dump
	for _, d := range open {
		c := possible(d)
		if n := d.NameRank; n >= 0 && w.dumps[n] == nil && (len(c) == 0 || slices.Contains(c, n)) {
			w.dumps[n] = d
		} else {
			rest = append(rest, d)
		}
	}
	for range rest {
		for _, d := range rest {
			c := slices.DeleteFunc(slices.Clone(possible(d)), func(r int) bool { return w.dumps[r] != nil })
			if len(c) > 0 && !w.has(d) {
				w.dumps[c[0]] = d
				if len(c) > 1 {
					w.guess[c[0]] = c
				}
			}
		}
	}
}

// complete finds members for groups without any. A dump that was cut before its groups
// has those of the others. weft's records list no members: those that left one count.
func (w *world) complete() {
	for _, r := range w.ranks() {
		for i := range w.dumps[r].Groups {
			if g := &w.dumps[r].Groups[i]; len(g.Ranks) == 0 {
				g.Ranks = w.members(r, g.Name)
			}
		}
	}
	for _, r := range w.ranks() {
		for i := range w.dumps[r].Groups {
			if g := &w.dumps[r].Groups[i]; len(g.Ranks) == 0 {
				g.Ranks = w.named(g.Name)
			}
		}
	}
}

// named lists the ranks whose dumps have a group of that name.
func (w *world) named(group string) (ranks []int) {
	for _, m := range w.ranks() {
		if slices.ContainsFunc(w.dumps[m].Groups, func(o Group) bool { return o.Name == group }) {
			ranks = append(ranks, m)
		}
	}
	return ranks
}

// enter adds a group, which the first dump that has it describes.
func (w *world) enter(g *Group) {
	g.key = groupKey(g.Name, g.Ranks)
	if len(g.Ranks) == 0 {
		return
	}
	if w.groups[g.key] == nil {
		w.groups[g.key] = g
		w.keys = append(w.keys, g.key)
	}
	for _, m := range g.Ranks {
		w.size = max(w.size, m+1)
	}
}

// members are those of a rank's group by the dumps of others.
func (w *world) members(r int, name string) []int {
	for _, m := range w.ranks() {
		for _, g := range w.dumps[m].Groups {
			if g.Name == name && slices.Contains(g.Ranks, r) {
				return slices.Clone(g.Ranks)
			}
		}
	}
	return nil
}

// passed says whether the dump of a rank that was cut shows an operation as finished.
func (w *world) passed(m int, key string, o *Op) bool {
	d := w.cut[m]
	if d == nil || o.P2P {
		return false
	}
	for i := range d.Entries {
		if e := &d.Entries[i]; !e.P2P && e.Done && e.Seq >= o.Seq && w.keyOf(d, e) == key {
			return true
		}
	}
	return false
}

func (w *world) has(d *Dump) bool {
	for _, x := range w.dumps {
		if x == d {
			return true
		}
	}
	return false
}

func (w *world) ranks() []int { return slices.Sorted(maps.Keys(w.dumps)) }

// missing are ranks of groups that left no dump.
func (w *world) missing() []int {
	set := map[int]bool{}
	for _, g := range w.groups {
		for _, m := range g.Ranks {
			if w.dumps[m] == nil {
				set[m] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// state is what a rank is doing in a group.
type state struct {
	known    bool  // the dump tells something of the group
	oldest   int64 // the oldest unfinished collective, -1 none
	enqueued int64 // the last collective that was issued, -1 unknown
	op       *Op
}

// view is one rank's operations by group.
type view struct {
	dump  *Dump
	first *Op // the oldest unfinished operation of all
	coll  map[string]*state
	p2p   map[string][]*Op // unfinished, by group and direction, in order
	sent  map[string]int   // finished, by group and direction
	whole bool             // the dump has everything since the rank began
}

func pairKey(group string, from, to int) string { return fmt.Sprintf("%s|%d>%d", group, from, to) }

// view is what one rank's dump says: where it stands in each group, and which messages it waits for. Operations are
// taken in the order in which they were recorded.
func (w *world) view(r int) *view {
	d := w.dumps[r]
	v := &view{dump: d, coll: map[string]*state{}, p2p: map[string][]*Op{}, sent: map[string]int{}}
	for i := range d.Groups {
		g := &d.Groups[i]
		s := &state{oldest: -1, enqueued: -1}
		if g.HasStatus && g.LastEnqueued >= 0 {
			s.enqueued, s.known = g.LastEnqueued, true
		}
		v.coll[g.key] = s
	}
	ops := make([]*Op, len(d.Entries))
	for i := range d.Entries {
		ops[i] = &d.Entries[i]
	}
	slices.SortStableFunc(ops, func(a, b *Op) int { return cmp.Compare(a.Record, b.Record) })
	v.whole = len(ops) > 0 && ops[0].Record == 0 && !d.Truncated
	usesP2P := map[string]bool{}
	last := map[string]int64{}
	for _, o := range ops {
		k := w.keyOf(d, o)
		if o.P2P {
			usesP2P[k] = true
		} else if x, ok := last[k]; !ok || o.Seq > x {
			last[k] = o.Seq
		}
		if o.Done {
			if o.P2P {
				v.sent[pairKey(k, o.From, o.To)]++
			}
			continue
		}
		if v.first == nil {
			v.first = o
		}
		if o.P2P {
			v.p2p[pairKey(k, o.From, o.To)] = append(v.p2p[pairKey(k, o.From, o.To)], o)
			continue
		}
		s := v.coll[k]
		if s == nil {
			s = &state{oldest: -1, enqueued: -1}
			v.coll[k] = s
		}
		if s.oldest < 0 || o.Seq < s.oldest {
			s.oldest, s.op = o.Seq, o
		}
	}
	for k, s := range v.coll {
		if n, ok := last[k]; ok {
			s.known = true
			if n > s.enqueued || usesP2P[k] { // the status of a group with P2P counts those
				s.enqueued = n
			}
		} else if usesP2P[k] {
			s.enqueued, s.known = -1, false
		}
	}
	return v
}

// keyOf is the key of an operation's group. Names repeat after groups are split:
// then the id decides.
func (w *world) keyOf(d *Dump, o *Op) string {
	found := ""
	for i := range d.Groups {
		g := &d.Groups[i]
		if g.Name != o.Group {
			continue
		}
		if g.ID >= 0 && g.ID == o.GroupID {
			return g.key
		}
		if found == "" {
			found = g.key
		}
	}
	if found == "" {
		found = o.Group
	}
	return found
}
