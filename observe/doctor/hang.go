package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The wait-graph.
//
//	rank 13: all-to-all #20537 ──waits for──► rank 12: all-to-all #20530
//	rank  1: send to 13        ──waits for──► rank 13 ──► ...
//
// Every rank has unfinished operations. Within a group the operations have an
// order, so a rank whose oldest unfinished operation is #9 waits for every member
// that is not there yet. Ranks that others wait for and that wait for nobody are
// the culprits. Clocks of hosts are not used.
//
// Two things keep victims and culprits apart. A rank whose oldest operation of all
// is one that its peers have finished waits for nobody: its own GPU did not finish
// it. And point-to-point operations are matched by pair, since their numbers differ
// between ranks.

type edge struct {
	from, to int
	op       *Op
	group    string
	weak     bool // a receive that may have been posted far ahead
}

// cut says whether operations that the dump lacks may have been in it.
func (d *Dump) cut() bool { return d.Truncated && !d.Idle }

// arrived says whether member m has come as far as operation s of a group: -1
// not yet, 0 it is in it, 1 it has finished it.
func arrived(v *view, key string, s int64) int {
	st := v.coll[key]
	cut := v.dump.cut()
	switch {
	case st == nil && cut:
		return 0
	case st == nil:
		return -1
	case st.oldest >= 0:
		return cmp.Compare(st.oldest, s)
	case st.known && st.enqueued < s:
		return -1
	case cut:
		return 0
	case !st.known:
		return -1
	}
	return 1
}

// judge finds who holds a job up; nil when nothing waits.
func (w *world) judge() *Hang {
	views, waiting := w.views()
	if !waiting {
		return nil
	}
	if h := w.mismatch(views); h != nil {
		return h
	}
	if h := w.inOrder(views); h != nil {
		return h
	}
	stuck := w.allStuck(views)
	known := w.edges(views, stuck, false)
	full := w.edges(views, stuck, true)
	culprits, cycle := surest(known)
	h := &Hang{Job: w.name, Confidence: 0.95}
	switch {
	case len(culprits) == 0:
		if c := w.missed(full, views); len(c) > 0 {
			h.Culprits, h.Class, h.Confidence = c, "missing", 0.8
		} else {
			return w.shared(views, h)
		}
	case cycle:
		h.Culprits, h.Class, h.Confidence = culprits, "order", 0.8
	default:
		h.Culprits = culprits
		h.Class = w.class(culprits, views, stuck)
		if h.Class == "" { // they wait in an operation that everybody has issued, and nobody knows of the missing
			if c := w.missed(full, views); len(w.missing()) > 0 && len(c) > 0 {
				h.Culprits, h.Class, h.Confidence = c, "missing", 0.8
			} else {
				h.Class = "network"
				h.Confidence = 0.6
			}
		}
	}
	w.addCandidates(h)
	w.doubt(h)
	w.describe(h, full, views)
	return h
}

// views is what each dump tells of its rank; waiting says whether any has an operation that is not finished.
func (w *world) views() (views map[int]*view, waiting bool) {
	views = map[int]*view{}
	for _, r := range w.ranks() {
		views[r] = w.view(r)
		waiting = waiting || views[r].first != nil
	}
	return views, waiting
}

func (w *world) allStuck(views map[int]*view) map[int]bool {
	stuck := map[int]bool{}
	for _, r := range w.ranks() {
		stuck[r] = w.selfStuck(r, views)
	}
	return stuck
}

// surest finds who is waited for, at first with all edges. If they form a circle it leaves out receives, which may have
// been posted far ahead and are no reason to wait.
func surest(known []edge) (culprits []int, cycle bool) {
	culprits, cycle = sinks(known)
	if len(culprits) > 0 && !cycle {
		return culprits, false
	}
	strong := slices.DeleteFunc(slices.Clone(known), func(e edge) bool { return e.weak })
	if c, cy := sinks(strong); len(c) > 0 && !cy {
		return c, false
	}
	return culprits, cycle
}

// addCandidates names the ranks that nothing is known of: they may be to blame as well, which makes the verdict less sure.
func (w *world) addCandidates(h *Hang) {
	for _, m := range w.missing() {
		if !slices.Contains(h.Culprits, m) {
			h.Candidates = append(h.Candidates, m)
		}
	}
	if len(h.Candidates) > 0 {
		h.Confidence = min(h.Confidence, 0.85)
	}
}

// candidate leaves out of the culprits those of whom less is known than of others: without a
// file where somebody with one is to blame, and with a cut one where others left none.
func (w *world) candidate(culprits []int) []int {
	known := func(r int) bool { return w.dumps[r] != nil }
	gone := func(r int) bool { return !known(r) && w.cut[r] == nil }
	for _, better := range []func(int) bool{known, gone} {
		if slices.ContainsFunc(culprits, better) {
			return slices.DeleteFunc(culprits, func(r int) bool { return !better(r) })
		}
	}
	return culprits
}

// doubt lowers the confidence where a culprit's dump is cut, or where nothing tells whose a
// dump is.
func (w *world) doubt(h *Hang) {
	for _, r := range h.Culprits {
		if w.cut[r] != nil {
			h.Confidence = min(h.Confidence, 0.5)
		}
		for at, may := range w.guess {
			if at == r || slices.Contains(may, r) {
				h.Confidence = min(h.Confidence, 0.5)
				h.Why = append(h.Why, fmt.Sprintf("nothing tells which of %s wrote %s: the numbers may be swapped", ranksText(may), w.dumps[at].File))
				return
			}
		}
	}
}

// busyBefore says whether a rank is still in an operation that it issued before the one of this group.
func (v *view) busyBefore(key string) bool {
	st := v.coll[key]
	return v.first != nil && st != nil && st.op != nil && v.first.Record < st.op.Record
}

// reach says how far a member is with the oldest unfinished operation of another rank:
// -1 it is not there, 0 it is in it now, 1 it has finished it. A rank works on its
// operations in the order in which it issued them, so one that is in an older operation
// is not there.
func (w *world) reach(mine, theirs *view, key string, o *Op) int {
	if !o.P2P {
		a := arrived(theirs, key, o.Seq)
		if a == 0 && theirs.busyBefore(key) {
			return -1
		}
		return a
	}
	pk := pairKey(key, o.From, o.To)
	if mine.whole && theirs.whole && theirs.sent[pk] != mine.sent[pk] {
		return cmp.Compare(theirs.sent[pk], mine.sent[pk])
	}
	if list := theirs.p2p[pk]; len(list) > 0 {
		return min(0, cmp.Compare(theirs.first.Record, list[0].Record))
	}
	if theirs.dump.cut() {
		return 0
	}
	return -1
}

// class is the class of hang that a rank causes, judged by its own dump alone. "in it" is none: it waits like the others.
func (v *view) class(stuck bool) string {
	switch {
	case v == nil:
		return "missing"
	case stuck:
		return "gpu"
	case v.first == nil:
		return "host"
	}
	return "in it"
}

// inOrder judges by the oldest unfinished operation of every rank alone: what it is in.
// It gives nil where that does not tell, as when ranks wait in a circle.
func (w *world) inOrder(views map[int]*view) *Hang {
	edges, stuck := w.waits(views)
	culprits, cycle := sinks(edges)
	if cycle {
		return nil
	}
	// A rank that has not finished what its peers have is to blame, also while nobody waits
	// for it.
	culprits = slices.AppendSeq(culprits, maps.Keys(stuck))
	slices.Sort(culprits)
	culprits = w.candidate(slices.Compact(culprits))
	class := map[string]int{}
	for _, r := range culprits {
		class[views[r].class(stuck[r])]++
	}
	// What waits in an operation that all have issued may follow from the others.
	culprits = slices.DeleteFunc(culprits, func(r int) bool { return views[r].class(stuck[r]) == "in it" })
	if len(culprits) == 0 {
		return nil
	}
	h := &Hang{Job: w.name, Culprits: culprits, Confidence: 0.95}
	for _, c := range []string{"missing", "host", "gpu"} {
		if class[c] > 0 {
			h.Class = c
		}
	}
	if h.Class == "missing" {
		h.Confidence = 0.8
	}
	w.addCandidates(h)
	w.doubt(h)
	w.describe(h, edges, views)
	if h.Operation == "" { // nobody waits for them yet
		o := views[culprits[0]].first
		h.Operation, h.Group = opName(o), o.Group
		if g := w.groups[w.keyOf(views[culprits[0]].dump, o)]; g != nil {
			h.Group = groupName(g)
		}
	}
	return h
}

// class says why culprits do not come; "" when they wait in an operation that all
// have issued.
func (w *world) class(culprits []int, views map[int]*view, stuck map[int]bool) string {
	count := map[string]int{}
	for _, r := range culprits {
		switch v := views[r]; {
		case stuck[r]:
			count["gpu"]++
		case v.first == nil:
			count["host"]++
		case w.onlyReceives(v):
			count["host"]++
		default:
			count["behind"]++
		}
	}
	switch {
	case count["gpu"] > 0:
		return "gpu"
	case count["host"] > 0:
		return "host"
	}
	// They have issued work that is unfinished, and their peers of that work are in it as well.
	return ""
}

func (w *world) onlyReceives(v *view) bool {
	for _, o := range v.dump.Entries {
		if !o.Done && (!o.P2P || !strings.HasPrefix(o.Name, "recv")) {
			return false
		}
	}
	return true
}

// stuckAt lists the places in a group's order where a member is stuck.
func (g *Group) stuckAt(views map[int]*view) []int64 {
	at := map[int64]bool{}
	for _, m := range g.Ranks {
		if v := views[m]; v != nil {
			if st := v.coll[g.key]; st != nil && st.oldest >= 0 {
				at[st.oldest] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(at))
}

// issued sorts a group's members by what they issued at one place, and gives an operation of each kind.
func (w *world) issued(g *Group, seq int64, views map[int]*view) (kinds map[string][]int, ops map[string]*Op) {
	kinds, ops = map[string][]int{}, map[string]*Op{}
	for _, m := range g.Ranks {
		v := views[m]
		if v == nil {
			continue
		}
		for i := range v.dump.Entries {
			o := &v.dump.Entries[i]
			if !o.P2P && o.Seq == seq && w.keyOf(v.dump, o) == g.key {
				what := kindOf(o)
				kinds[what] = append(kinds[what], m)
				ops[what] = o
				break
			}
		}
	}
	return kinds, ops
}

// mismatch looks for ranks that issued another operation at the same place.
func (w *world) mismatch(views map[int]*view) *Hang {
	for _, key := range w.keys {
		g := w.groups[key]
		for _, seq := range g.stuckAt(views) {
			kinds, ops := w.issued(g, seq, views)
			if len(kinds) < 2 {
				continue
			}
			most := commonest(kinds)
			h := &Hang{Job: w.name, Class: "mismatch", Confidence: 0.9, Group: groupName(g), Operation: fmt.Sprintf("%s #%d", ops[most].Name, seq)}
			tie := false
			for _, k := range slices.Sorted(maps.Keys(kinds)) {
				h.Why = append(h.Why, fmt.Sprintf("at operation %d of group %s, %s issued %s", seq, groupName(g), ranksText(kinds[k]), k))
				if k != most {
					h.Culprits = append(h.Culprits, kinds[k]...)
					tie = tie || len(kinds[k]) == len(kinds[most])
				} else {
					h.Waiting = slices.Clone(kinds[k])
				}
			}
			if tie {
				h.Culprits = append(h.Culprits, kinds[most]...)
				h.Confidence = 0.7
				h.Why = append(h.Why, "as many ranks issued the one as the other: both are named")
			}
			slices.Sort(h.Culprits)
			return h
		}
	}
	return nil
}

// kindOf names an operation for comparing. Operations whose parts differ by rank
// (all-to-all with uneven parts, gathers with a root) are compared by name alone.
func kindOf(o *Op) string {
	n := strings.ToLower(o.Name)
	for _, free := range []string{"all_to_all", "alltoall", "scatter", "gather", "v", "coalesced", "broadcast", "barrier"} {
		if free != "v" && strings.Contains(n, free) && !strings.Contains(n, "_base") && !strings.Contains(n, "all_gather") &&
			!strings.Contains(n, "reduce_scatter") {
			return o.Name
		}
	}
	if strings.Contains(n, "coalesced") || strings.Contains(n, "all_to_all") {
		return o.Name
	}
	if o.Sizes == "" {
		return o.Name
	}
	return o.Name + " of " + o.Sizes
}

// shared is the verdict when nobody is behind: all wait in operations that all
// have issued.
func (w *world) shared(views map[int]*view, h *Hang) *Hang {
	type place struct {
		key string
		seq int64
	}
	count := map[place][]int{}
	var ops = map[place]*Op{}
	for _, r := range w.ranks() {
		if o := views[r].first; o != nil {
			p := place{w.keyOf(views[r].dump, o), o.Seq}
			if o.P2P {
				p.key, p.seq = pairKey(p.key, o.From, o.To), 0
			}
			count[p] = append(count[p], r)
			ops[p] = o
		}
	}
	var best place
	for _, p := range slices.SortedFunc(maps.Keys(count), func(a, b place) int {
		return cmp.Or(natural(a.key, b.key), cmp.Compare(a.seq, b.seq))
	}) {
		if len(count[p]) > len(count[best]) {
			best = p
		}
	}
	o := ops[best]
	h.Waiting = count[best]
	h.Operation = opName(o)
	key, _, _ := strings.Cut(best.key, "|")
	if g := w.groups[key]; g != nil {
		h.Group = groupName(g)
	} else {
		h.Group = o.Group
	}
	h.Culprits = []int{}
	h.Confidence = 0.6
	if len(count[best]) == 2 {
		h.Class, h.Culprits = "link", count[best]
		h.Why = append(h.Why, fmt.Sprintf("%s have issued %s and it does not finish: the path between them is suspect",
			ranksText(count[best]), h.Operation))
	} else {
		h.Class = "network"
		h.Why = append(h.Why,
			fmt.Sprintf("%s have issued %s and none has finished it: no rank is behind; look for errors of the network below it",
				ranksText(count[best]), h.Operation))
	}
	h.Candidates = w.missing()
	return h
}

func groupName(g *Group) string {
	if g.Desc != "" && g.Desc != "undefined" {
		return g.Desc + " (" + g.Name + ")"
	}
	return g.Name
}

func opName(o *Op) string {
	if o.P2P {
		return o.Name
	}
	return fmt.Sprintf("%s #%d", o.Name, o.Seq)
}

func ranksText(r []int) string {
	r = slices.Clone(r)
	slices.Sort(r)
	return plural(len(r), "rank") + " " + Numbers(r)
}

// describe fills in who waits, in what, and why the culprits are named.
func (w *world) describe(h *Hang, edges []edge, views map[int]*view) {
	back := map[int][]int{}
	direct := map[string][]edge{}
	for _, e := range edges {
		back[e.to] = append(back[e.to], e.from)
		if slices.Contains(h.Culprits, e.to) && !slices.Contains(h.Culprits, e.from) {
			direct[e.group] = append(direct[e.group], e)
		}
	}
	seen := map[int]bool{}
	queue := slices.Clone(h.Culprits)
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		for _, m := range back[n] {
			if !seen[m] && !slices.Contains(h.Culprits, m) {
				seen[m] = true
				queue = append(queue, m)
			}
		}
	}
	h.Waiting = slices.Sorted(maps.Keys(seen))
	if h.Waiting == nil {
		h.Waiting = []int{}
	}
	if best := w.mostWaits(direct); best != "" {
		h.Group = groupName(w.groups[best])
		first := slices.MinFunc(direct[best], func(a, b edge) int { return cmp.Compare(a.op.Seq, b.op.Seq) })
		h.Operation = opName(first.op)
	}
	for _, c := range h.Culprits {
		var who []int
		for _, e := range edges {
			if e.to == c && !slices.Contains(h.Culprits, e.from) {
				who = append(who, e.from)
			}
		}
		slices.Sort(who)
		who = slices.Compact(who)
		if h.about == nil {
			h.about = map[int]int{}
		}
		h.about[len(h.Why)] = c
		h.Why = append(h.Why, fmt.Sprintf("rank %d %s; %s %s for it", c, w.doing(h, c, views[c]), ranksText(who),
			map[bool]string{true: "waits", false: "wait"}[len(who) == 1]))
	}
	if len(h.Candidates) > 0 {
		h.Why = append(h.Why, ranksText(h.Candidates)+" left no dump: nothing is known of them")
	}
}

// mostWaits returns the group in which the most ranks wait for culprits, by the waits of each group. A collective says
// more than a message, and counts three times.
func (w *world) mostWaits(direct map[string][]edge) (best string) {
	most := 0
	for _, k := range w.keys {
		pairs := map[[2]int]bool{}
		for _, e := range direct[k] {
			pairs[[2]int{e.from, e.to}] = pairs[[2]int{e.from, e.to}] || !e.op.P2P
		}
		n := 0
		for _, coll := range pairs {
			if n++; coll {
				n += 2
			}
		}
		if n > most {
			best, most = k, n
		}
	}
	return best
}

// doing says what a culprit was at, by its dump; v is nil without one.
func (w *world) doing(h *Hang, culprit int, v *view) string {
	switch {
	case v == nil && w.cut[culprit] != nil:
		return "left a dump that is cut"
	case v == nil:
		return "left no dump"
	case v.first == nil:
		return "has no unfinished operation"
	}
	group := v.first.Group
	if g := w.groups[w.keyOf(v.dump, v.first)]; g != nil {
		group = groupName(g)
	}
	what := "is still in " + opName(v.first) + " of group " + group
	if h.Class == "gpu" {
		what += ", which its peers have finished"
	}
	return what
}

// Hangs gives a verdict for each job of which dumps were read.
func Hangs(c *Case) []Hang {
	var out []Hang
	for _, w := range worlds(c.Dumps) {
		if h := w.judge(); h != nil {
			out = append(out, *h)
		}
	}
	return out
}
