package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Verdicts over the ranks of a job.

func (d *diag) crossRules() {
	d.arrivals()
	d.netPaths()
	d.identity()
	d.channelsDiffer()
	d.rings()
	d.outOfStep()
}

// cutFile says whether a file ends in the middle.
func (d *diag) cutFile(name string) bool {
	return slices.ContainsFunc(d.c.Files, func(f File) bool { return f.Path == name && f.has(Cut) })
}

// atEnd says whether the last line of a rank is the last of a file that several
// processes wrote: the file may have been cut there.
func (d *diag) atEnd(m *member) bool {
	l := m.proc.lines[len(m.proc.lines)-1]
	several := false
	for _, p := range m.proc.job.procs {
		several = several || p != m.proc && len(p.lines) > 0 && p.lines[0].At.File == l.At.File
	}
	for _, f := range d.c.Files {
		if f.Path == l.At.File {
			return several && f.Lines-l.At.Line < 2
		}
	}
	return false
}

// stoppedBy says whether a finding is reason enough for a job to stop: it is critical, and about more than speed.
func (jb *job) stoppedBy(f *Finding) bool {
	return f.Severity == Critical && (f.Job == "" || f.Job == jb.name) && f.ID != "tcp-fallback" && f.Layer != "performance"
}

// arrivals finds ranks that never came to a communicator.
func (d *diag) arrivals() {
	jb := d.job
	failed := slices.ContainsFunc(d.list, jb.stoppedBy)
	for _, c := range jb.comms {
		a := c.reached()
		if miss := c.n - len(c.members); miss > 0 && c == jb.world && len(a.done) > 0 {
			d.unknown = append(d.unknown, fmt.Sprintf("%d of %d ranks of %s have no lines here: their logs were not given", miss, c.n, jb.name))
		}
		if len(a.done) > 0 || len(a.starts) == 0 {
			continue
		}
		cut := slices.ContainsFunc(a.starts, func(r int) bool { return d.cutFile(c.members[r].start.At.File) })
		switch {
		case len(a.starts) < c.n:
			d.neverArrived(c, a.starts, cut, failed)
		case !failed:
			d.stuck(c, a, cut)
		}
	}
}

// reached is which ranks of a communicator came how far in its setup.
type reached struct{ starts, booted, done []int }

// reached says how far the ranks of a communicator came in setting it up.
func (c *comm) reached() (a reached) {
	for _, r := range c.ranks() {
		m := c.members[r]
		if m.start != nil {
			a.starts = append(a.starts, r)
		}
		if m.done != nil {
			a.done = append(a.done, r)
		}
		if m.boot != nil {
			a.booted = append(a.booted, r)
		}
	}
	return a
}

// absent lists the ranks below n that are not among those present.
func absent(n int, present []int) (missing []int) {
	for r := range n {
		if !slices.Contains(present, r) {
			missing = append(missing, r)
		}
	}
	return missing
}

// neverArrived says which ranks did not come to a communicator that the others entered.
func (d *diag) neverArrived(c *comm, starts []int, cut, failed bool) {
	jb := d.job
	missing := absent(c.n, starts)
	lone := len(jb.procs) == 1 // the logs of the others were not given
	if lone && failed {
		d.unknown = append(d.unknown, fmt.Sprintf("%d of %d ranks of %s have no lines here: their logs were not given",
			len(missing), c.n, jb.name))
		return
	}
	// Processes that print but have not come to Init.
	s := Subject{Ranks: missing}
	var ev []Evidence
	for _, r := range starts[:min(len(starts), 2)] {
		ev = append(ev, c.members[r].start.At)
	}
	for _, p := range jb.procs {
		if len(p.members) == 0 {
			s.Hosts = append(s.Hosts, p.host)
			ev = append(ev, p.lines[len(p.lines)-1].At)
		}
	}
	f := d.find("never-arrived", s, ev...)
	f.Cause = fmt.Sprintf("%d of %d ranks entered the communicator; %s did not: not started, or stuck before NCCL",
		len(starts), c.n, ranksText(missing))
	if cut || lone {
		f.Confidence = 0.4
		f.Severity = Warning
	}
	if lone {
		f.Cause = fmt.Sprintf("only %s is in these logs, and waits for the others: they are not started, stuck before NCCL, or their logs were not given",
			ranksText(starts))
	}
	if failed {
		f.Severity = Warning
	}
}

// stuck says where a communicator stopped that all ranks entered and none finished.
func (d *diag) stuck(c *comm, a reached, cut bool) {
	var f *Finding
	hasVia, hasUp := false, false
	for _, m := range c.members {
		hasVia = hasVia || len(m.via) > 0
		hasUp = hasUp || m.ringsUp != nil
	}
	switch {
	case hasVia && !hasUp:
		s, ev := d.halfPairs(c)
		f = d.find("stuck-in-connect", s, ev...)
	case !hasVia:
		s, ev := c.notBooted(a)
		f = d.find("stuck-in-bootstrap", s, ev...)
	}
	if f != nil && cut { // it may have gone on after the end of the log
		f.Confidence, f.Severity = 0.4, Warning
	}
}

// notBooted names the ranks that the bootstrap waits for. Where no rank or every rank has passed it, that is the one that
// started last, if the lines have times.
func (c *comm) notBooted(a reached) (s Subject, ev []Evidence) {
	if len(a.booted) > 0 && len(a.booted) < c.n {
		for _, r := range absent(c.n, a.booted) {
			s.Ranks = append(s.Ranks, r)
			s.Hosts = append(s.Hosts, c.members[r].proc.host)
			ev = append(ev, c.members[r].start.At)
		}
		return s, ev
	}
	last := c.members[a.starts[0]]
	for _, r := range a.starts {
		if m := c.members[r]; m.start.Time > last.start.Time {
			last = m
		}
	}
	if last.start.Time > 0 {
		s = Subject{Ranks: []int{last.rank}, Hosts: []string{last.proc.host}}
	}
	return s, []Evidence{last.start.At}
}

type wire struct {
	c, k string
	a, b int
}

// wires joins the ends of network connections: what the sender printed and what the
// receiver printed.
func wires(c *comm) (send, recv map[wire]*Line) {
	send, recv = map[wire]*Line{}, map[wire]*Line{}
	for _, r := range c.ranks() {
		for _, l := range c.members[r].via {
			if l.Kind != "ch_net" {
				continue
			}
			w := wire{l.F["c"], l.F["cc"], num(l.F["a"]), num(l.F["b"])}
			if l.F["dir"] == "send" {
				send[w] = l
			} else {
				recv[w] = l
			}
		}
	}
	return send, recv
}

func sortWires(m map[wire]*Line) []wire {
	return slices.SortedFunc(maps.Keys(m), func(x, y wire) int {
		return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b), natural(x.c, y.c), natural(x.k, y.k))
	})
}

// halfPairs lists pairs of which one end printed and the other did not.
func (d *diag) halfPairs(c *comm) (s Subject, ev []Evidence) {
	send, recv := wires(c)
	for _, w := range sortWires(send) {
		if recv[w] == nil && c.members[w.b] != nil {
			s.Ranks = append(s.Ranks, w.b)
			s.Hosts = append(s.Hosts, c.members[w.b].proc.host)
			s.Links = append(s.Links, fmt.Sprintf("rank %d - rank %d", w.a, w.b))
			ev = append(ev, send[w].At)
		}
	}
	for _, w := range sortWires(recv) {
		if send[w] == nil && c.members[w.a] != nil {
			s.Ranks = append(s.Ranks, w.a)
			s.Hosts = append(s.Hosts, c.members[w.a].proc.host)
			s.Links = append(s.Links, fmt.Sprintf("rank %d - rank %d", w.a, w.b))
			ev = append(ev, recv[w].At)
		}
	}
	if len(ev) == 0 {
		for _, r := range c.ranks() {
			if v := c.members[r].via; len(v) > 0 {
				ev = append(ev, v[len(v)-1].At)
				break
			}
		}
	}
	return s, ev
}

// identity finds ranks of one host that NCCL takes for ranks of different hosts.
func (d *diag) identity() {
	jb := d.job
	for _, c := range jb.sure() {
		byHost := map[string]int{}
		for _, m := range c.members {
			byHost[m.proc.host]++
		}
		for _, r := range c.ranks() {
			m := c.members[r]
			if sh := m.shape; sh != nil && num(sh.F["nodes"]) == c.n && byHost[m.proc.host] > 1 {
				d.find("host-identity-split", d.of(sh), sh.At)
			}
			for _, l := range m.via {
				if l.Kind == "ch_net" && c.insideHost(l) {
					d.find("host-identity-split", d.of(l), l.At)
				}
			}
		}
	}
}

// insideHost says whether a connection joins two processes of one host.
func (c *comm) insideHost(l *Line) bool {
	a, b := c.members[num(l.F["a"])], c.members[num(l.F["b"])]
	return a != nil && b != nil && a.proc.host == b.proc.host && a.proc != b.proc
}

// channelsDiffer finds ranks of a communicator that set up other channels than most: they would pair up wrongly.
func (d *diag) channelsDiffer() {
	for _, c := range d.job.sure() {
		kinds := map[string][]*member{}
		for _, r := range c.ranks() {
			if l := c.members[r].channels; l != nil {
				k := fmt.Sprintf("%s coll, %s nvls, %s p2p, %s a peer", l.F["coll"], cmp.Or(l.F["nv"], "0"), l.F["p2p"], l.F["pp"])
				kinds[k] = append(kinds[k], c.members[r])
			}
		}
		if len(kinds) < 2 {
			continue
		}
		common := commonest(kinds)
		for _, k := range slices.Sorted(maps.Keys(kinds)) {
			if k == common {
				continue
			}
			for _, m := range kinds[k] {
				f := d.find("channels-differ", Subject{Ranks: []int{m.rank}, Hosts: []string{m.proc.host}}, m.channels.At, kinds[common][0].channels.At)
				f.Cause = fmt.Sprintf("these ranks have %s, the others %s: variables, NIC count or GPU model differ", k, common)
			}
		}
	}
}

// rings rebuilds the rings of the largest communicator from via lines and counts how
// often they cross between hosts.
func (d *diag) rings() {
	c := d.job.world
	if c == nil || len(c.members) < c.n || len(d.job.hosts()) < 2 {
		return
	}
	next := map[string]map[int]int{}
	for _, m := range c.members {
		for _, l := range m.via {
			a, b := num(l.F["a"]), num(l.F["b"])
			if l.F["cc"] != "" && l.F["cc"] != "0" || a != m.rank && l.Kind != "ch_net" {
				continue
			}
			if l.Kind == "ch_net" && l.F["dir"] != "send" {
				continue
			}
			if next[l.F["c"]] == nil {
				next[l.F["c"]] = map[int]int{}
			}
			if _, twice := next[l.F["c"]][a]; !twice {
				next[l.F["c"]][a] = b
			}
		}
	}
	hosts := len(d.job.hosts())
	worst, rings := 0, 0
	for _, ch := range slices.SortedFunc(maps.Keys(next), natural) {
		ring := next[ch]
		if len(ring) != c.n {
			continue
		}
		at, cross, steps := 0, 0, 0
		for ; steps < c.n; steps++ {
			to := ring[at]
			if c.members[at] == nil || c.members[to] == nil {
				break
			}
			if c.members[at].proc.host != c.members[to].proc.host {
				cross++
			}
			if at = to; at == 0 {
				steps++
				break
			}
		}
		if at == 0 && steps == c.n {
			rings++
			worst = max(worst, cross)
		}
	}
	if rings > 0 && worst > hosts+hosts/4 {
		f := d.find("rank-order", Subject{Hosts: d.job.hosts()}, c.members[0].first().At)
		f.Cause = fmt.Sprintf("a ring crosses between hosts %d times, %d hosts need %d: ranks are not in the order of hosts", worst, hosts, hosts)
	}
}

// outOfStep compares COLL lines: the same count must be the same operation.
func (d *diag) outOfStep() {
	for _, c := range d.job.sure() {
		calls, last := c.launches()
		if len(last) < 2 {
			continue
		}
		if d.differentCalls(c, calls) || d.fellBehind(c, calls, last) {
			return
		}
	}
}

// launched is a collective that a rank launched, as its log says.
type launched struct {
	text string
	l    *Line
}

// launches collects the collectives of a communicator by number and rank, and the last number of each rank.
func (c *comm) launches() (calls map[int64]map[int]launched, last map[int]int64) {
	calls, last = map[int64]map[int]launched{}, map[int]int64{}
	for _, r := range c.ranks() {
		for _, l := range c.members[r].colls {
			if l.F["fn"] == "Send" || l.F["fn"] == "Recv" {
				continue
			}
			op, err := strconv.ParseInt(l.F["op"], 16, 64)
			if err != nil {
				continue
			}
			if calls[op] == nil {
				calls[op] = map[int]launched{}
			}
			text := fmt.Sprintf("%s of %s elements of type %s, op %s, root %s", l.F["fn"], l.F["cnt"], l.F["dt"], l.F["redop"], l.F["root"])
			if _, dup := calls[op][r]; dup {
				continue // counts begin anew: cannot be told apart
			}
			calls[op][r] = launched{text, l}
			last[r] = max(last[r], op)
		}
	}
	return calls, last
}

// differentCalls finds the first number at which ranks called different collectives.
func (d *diag) differentCalls(c *comm, calls map[int64]map[int]launched) bool {
	for _, op := range slices.Sorted(maps.Keys(calls)) {
		kinds := map[string][]int{}
		for r, x := range calls[op] {
			kinds[x.text] = append(kinds[x.text], r)
		}
		if len(kinds) < 2 {
			continue
		}
		common := commonest(kinds)
		h := Hang{Class: "mismatch", Group: cmp.Or(c.id, c.key), Operation: fmt.Sprintf("%s #%d", calls[op][kinds[common][0]].l.F["fn"], op),
			Confidence: 0.85, Waiting: kinds[common]}
		slices.Sort(h.Waiting)
		var f *Finding
		for _, k := range slices.Sorted(maps.Keys(kinds)) {
			slices.Sort(kinds[k])
			h.Why = append(h.Why, fmt.Sprintf("at operation %d, %s called %s", op, ranksText(kinds[k]), k))
			if k == common {
				continue
			}
			h.Culprits = append(h.Culprits, kinds[k]...)
			for _, r := range kinds[k] {
				f = d.find("desync", Subject{Ranks: []int{r}, Hosts: []string{c.members[r].proc.host}}, calls[op][r].l.At,
					calls[op][kinds[common][0]].l.At)
			}
		}
		f.Cause = strings.Join(h.Why, "; ")
		slices.Sort(h.Culprits)
		d.hangs = append(d.hangs, h)
		return true
	}
	return false
}

// reachedCall sorts ranks by whether they launched operation top. It leaves out those whose last operation is unknown
// because their log was cut or they had finished.
func (d *diag) reachedCall(c *comm, last map[int]int64, top int64) (behind, there []int) {
	for _, r := range slices.Sorted(maps.Keys(last)) {
		m := c.members[r]
		if d.cutFile(m.colls[0].At.File) || m.end != nil || last[r] != top && d.atEnd(m) {
			continue
		}
		if last[r] == top {
			there = append(there, r)
		} else {
			behind = append(behind, r)
		}
	}
	return behind, there
}

// fellBehind finds a minority that stopped earlier than all the others, which stopped together.
func (d *diag) fellBehind(c *comm, calls map[int64]map[int]launched, last map[int]int64) bool {
	top := int64(-1)
	for _, op := range last {
		top = max(top, op)
	}
	behind, there := d.reachedCall(c, last, top)
	if len(behind) == 0 || len(behind)*4 > len(there) || len(there) < 2 {
		return false
	}
	// Ranks that write one file leave lines in the order of time: the last lines
	// of a running job differ by little. Only a gap that all others share counts.
	h := Hang{Class: "behind", Culprits: behind, Waiting: there, Group: cmp.Or(c.id, c.key), Confidence: 0.7,
		Operation: fmt.Sprintf("%s #%d", calls[top][there[0]].l.F["fn"], top)}
	for _, r := range behind {
		l := c.members[r].colls[len(c.members[r].colls)-1]
		f := d.find("desync", Subject{Ranks: []int{r}, Hosts: []string{c.members[r].proc.host}}, l.At)
		f.Confidence = 0.7
		f.Cause = fmt.Sprintf("%s stopped at operation %d, all others launched %d", ranksText(behind), last[r], top)
		h.Why = append(h.Why, fmt.Sprintf("rank %d launched up to operation %d, %s up to %d", r, last[r], ranksText(there), top))
	}
	d.hangs = append(d.hangs, h)
	return true
}

func (jb *job) ncclSeen() bool {
	if len(jb.procs) > 0 {
		return true
	}
	return jb.some("version", "watchdog")
}

// launchRules looks over jobs: processes that should have been one job.
func (d *diag) launchRules() {
	heads := map[string][]*Line{}
	for i := range d.c.Lines {
		if l := &d.c.Lines[i]; l.Kind == "bench_head" {
			heads[l.At.File] = append(heads[l.At.File], l)
		}
	}
	alone := map[string][]*member{}
	larger := false
	for _, jb := range d.j.jobs {
		for _, c := range jb.comms {
			hosts := map[string]bool{}
			for _, m := range c.members {
				hosts[m.proc.host] = true
			}
			if len(hosts) > 1 {
				larger = true
			}
			if m := c.members[0]; m != nil && c == jb.world && len(jb.comms) <= 2 {
				alone[m.first().At.File] = append(alone[m.first().At.File], m)
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(alone)) {
		list := alone[file]
		procs := map[*proc]bool{}
		for _, m := range list {
			procs[m.proc] = true
		}
		if larger || len(procs) < 2 {
			continue
		}
		// One after the other is two jobs; at the same time is one launch.
		if !together(list) && len(heads[file]) < 2 {
			continue
		}
		f := d.find("never-joined", Subject{})
		for _, m := range list {
			f.Subject.Hosts = append(f.Subject.Hosts, m.proc.host)
			f.addEvidence(m.first().At)
		}
		for _, l := range heads[file] {
			f.addEvidence(l.At)
		}
		f.Cause = fmt.Sprintf("%d processes each made a communicator of their own with rank 0 of %d: a benchmark built without MPI, or launcher variables missing",
			len(procs), list[0].comm.n)
	}
	if larger || len(d.j.jobs) > 0 {
		return
	}
	for _, file := range slices.Sorted(maps.Keys(heads)) {
		if len(heads[file]) >= 2 && len(alone[file]) == 0 && d.rowsBefore(heads[file][1].At) == 0 {
			// Without NCCL's lines only headings tell; two runs in one file look the same,
			// unless the headings come before any row.
			d.find("never-joined", Subject{}, heads[file][0].At, heads[file][1].At)
		}
	}
}

// rowsBefore counts the rows of benchmarks above a line of a file.
func (d *diag) rowsBefore(at Evidence) (n int) {
	for _, b := range d.c.Bench {
		if b.At.File == at.File && b.At.Line < at.Line {
			n++
		}
	}
	return n
}

// together says whether processes of one file ran at the same time: their lines are
// mixed.
func together(list []*member) bool {
	for i, a := range list {
		for _, b := range list[i+1:] {
			al, bl := a.proc.lines, b.proc.lines
			if a.proc == b.proc {
				continue
			}
			if al[0].At.Line < bl[len(bl)-1].At.Line && bl[0].At.Line < al[len(al)-1].At.Line {
				return true
			}
		}
	}
	return false
}
