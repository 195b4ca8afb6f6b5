package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Rules on RAS, Inspector and nccl-tests.

// rasRules judges reports of NCCL's RAS, each against the counts of the report before.
func (d *diag) rasRules() {
	before := map[rasPlace]map[string]int64{}
	for i, r := range d.c.RAS {
		for _, p := range r.Dead {
			f := d.find("ras-missing", Subject{Hosts: []string{p.Host}, Devices: []string{named(p.Host, "GPU"+p.GPU)}}, p.At)
			if !p.Dead && len(r.Dead) == 1 {
				f.Cause = "process frozen or just gone; RAS declares it dead after 60 s"
			}
		}
		for _, c := range r.Comms {
			d.rasComm(r.File, c, i > 0, before)
		}
	}
}

// rasPlace is a rank of a communicator, in any report.
type rasPlace struct {
	hash string
	rank int
}

// failed says whether RAS reports an error of the rank: states other than success (0) and in progress (7), or an abort.
func (k RASRank) failed() bool {
	return k.AsyncError != 0 && k.AsyncError != 7 || k.Abort || k.InitState != 0 && k.InitState != 7
}

func (d *diag) rasErrors(file string, c RASComm) {
	for _, k := range c.Ranks {
		if k.failed() {
			d.find("ras-error", Subject{Ranks: []int{k.Rank}, Hosts: []string{k.Host}},
				Evidence{File: file, Line: k.Line, Text: fmt.Sprintf("communicator %s rank %d: init state %d, async error %d, abort %v",
					c.Hash, k.Rank, k.InitState, k.AsyncError, k.Abort)})
		}
	}
}

func (d *diag) rasMissing(file string, c RASComm) {
	for _, k := range c.Missing {
		ev := Evidence{File: file, Line: k.Line, Text: fmt.Sprintf("communicator %s: rank %d on %s (process %d) does not answer",
			c.Hash, k.Rank, cmp.Or(k.Host, "?"), k.PID)}
		if len(c.Text) > 0 {
			ev = c.Text[len(c.Text)-1]
		}
		f := d.find("ras-missing", Subject{Ranks: []int{k.Rank}, Hosts: []string{k.Host}}, ev)
		if k.Dead {
			f.Cause = "RAS considers the process dead"
		}
	}
}

// rasComm judges one communicator of a report; again says that an earlier report left its counts in before.
func (d *diag) rasComm(file string, c RASComm, again bool, before map[rasPlace]map[string]int64) {
	d.rasMissing(file, c)
	d.rasErrors(file, c)
	stuck, moved := false, false
	for _, k := range c.Ranks {
		p := rasPlace{c.Hash, k.Rank}
		if old, ok := before[p]; ok && again {
			same := maps.Equal(old, k.Counts)
			stuck = stuck || same
			moved = moved || !same
		}
		before[p] = k.Counts
	}
	if lag := c.lag(); len(lag.ranks) > 0 {
		d.rasBehind(file, c, lag, stuck, moved)
	}
	if len(c.Missing) > 0 && len(d.hangs) == 0 {
		d.hangs = append(d.hangs, c.unanswered())
	}
}

// unanswered is the hang of which the ranks that do not answer are to blame.
func (c RASComm) unanswered() Hang {
	h := Hang{Class: "missing", Group: c.Hash, Operation: "collective", Confidence: 0.85, Waiting: []int{}}
	for _, k := range c.Missing {
		h.Culprits = append(h.Culprits, k.Rank)
		h.Why = append(h.Why, fmt.Sprintf("rank %d does not answer RAS", k.Rank))
	}
	slices.Sort(h.Culprits)
	h.Culprits = slices.Compact(h.Culprits) // a report lists a rank in several sections
	return h
}

// rasLag is who is behind in a communicator, by how much, and in which operation the most.
type rasLag struct {
	ranks []RASRank
	gap   int64
	op    string
	top   map[string]int64 // the highest count of each operation
}

// lag looks for ranks below the highest count of an operation.
func (c RASComm) lag() (lag rasLag) {
	lag.top = maps.Clone(c.Top)
	if lag.top == nil {
		lag.top = map[string]int64{}
	}
	for _, k := range c.Ranks {
		for op, n := range k.Counts {
			lag.top[op] = max(lag.top[op], n)
		}
	}
	for _, k := range c.Ranks {
		late := false
		for _, op := range slices.Sorted(maps.Keys(k.Counts)) {
			n := lag.top[op] - k.Counts[op]
			late = late || n > 0
			if n > lag.gap {
				lag.gap, lag.op = n, op
			}
		}
		if late {
			lag.ranks = append(lag.ranks, k)
		}
	}
	return lag
}

// rasBehind judges ranks that launched less than others. stuck: some launched nothing since the report before; moved: some did.
func (d *diag) rasBehind(file string, c RASComm, lag rasLag, stuck, moved bool) {
	behind, gap, opName := lag.ranks, lag.gap, lag.op
	most := len(behind)*2 > max(c.Size, len(c.Ranks)) // a few are ahead of all others
	var ranks []int
	for _, k := range behind {
		ranks = append(ranks, k.Rank)
	}
	slices.Sort(ranks)
	f := d.find("ras-behind", Subject{Ranks: ranks})
	for _, k := range behind {
		f.Subject.Hosts = append(f.Subject.Hosts, k.Host)
		f.addEvidence(Evidence{File: file, Line: k.Line,
			Text: fmt.Sprintf("communicator %s %s is %d %s behind in %s", c.Hash, k.name(), gap, plural(int(gap), "operation"), opName)})
	}
	switch {
	case most && !stuck:
		f.Severity, f.Confidence = Warning, 0.5
		f.Cause = fmt.Sprintf("%d of %d ranks have launched %s #%d, the others are ahead and wait: who holds them up is among those behind; counts can differ for a moment, so ask again after 30 s",
			len(behind), max(c.Size, len(c.Ranks)), opName, lag.top[opName]-gap)
	case moved:
		f.Severity, f.Confidence = Warning, 0.6
		f.Cause = "they are behind but still launch: slow, not stuck"
	case stuck || len(c.Missing) > 0:
		f.Confidence = 0.9
	default:
		f.Severity, f.Confidence = Warning, 0.6
		f.Cause = "behind in one report; counts can differ for a moment: ask again after 30 s"
	}
	if moved || !stuck {
		return
	}
	d.hangs = append(d.hangs, Hang{Culprits: ranks, Class: "behind", Group: c.Hash, Operation: cmp.Or(opName, "collective"),
		Confidence: f.Confidence, Waiting: c.without(ranks)})
}

// name is the rank, and its process where RAS knows it: ranks that it lost have none.
func (k RASRank) name() string {
	if k.Host == "" {
		return fmt.Sprintf("rank %d", k.Rank)
	}
	return fmt.Sprintf("rank %d on %s (process %d)", k.Rank, k.Host, k.PID)
}

// without lists the other ranks of the communicator.
func (c RASComm) without(ranks []int) []int {
	others := []int{}
	for _, k := range c.Ranks {
		if !slices.Contains(ranks, k.Rank) {
			others = append(others, k.Rank)
		}
	}
	return others
}

func (d *diag) perfRules() {
	d.lateness()
	d.delays()
	d.drops()
	for _, b := range d.c.Bench {
		if b.Wrong > 0 {
			d.find("results-wrong", Subject{}, b.At)
		}
	}
	for _, e := range d.o.Expect {
		d.reaches(e)
	}
}

// reaches compares the best measurement of an operation and size with its prediction.
func (d *diag) reaches(e Expectation) {
	best := Bench{}
	for _, b := range d.c.Bench {
		if opWord(b.Op) == e.Op && b.Size == e.Size && b.Bus > best.Bus {
			best = b
		}
	}
	if best.Bus > 0 && best.Bus < 0.8*e.Bus {
		f := d.find("below-prediction", Subject{}, best.At)
		f.Cause = fmt.Sprintf("%s of %d bytes reached %.1f GB/s, %.1f are predicted (%s)", e.Op, e.Size, best.Bus, e.Bus, e.Why)
		if best.Bus < 0.5*e.Bus {
			f.Severity = Critical
		}
	}
}

// opWord turns all_reduce and AllReduce into all-reduce.
func opWord(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '_':
			b.WriteByte('-')
		case r >= 'A' && r <= 'Z':
			if i > 0 {
				b.WriteByte('-')
			}
			b.WriteRune(r + 'a' - 'A')
		default:
			b.WriteRune(r)
		}
	}
	return strings.Replace(b.String(), "alltoall", "all-to-all", 1)
}

// collective says whether the record is of a rank's time in a collective.
func (p *Perf) collective() bool {
	return p.Seq >= 0 && p.Rank >= 0 && p.Peer < 0 && p.Micros > 0 && p.Op != ""
}

// largeMessage says whether the record is of a message whose time depends on bandwidth more than on latency.
func (p *Perf) largeMessage() bool {
	return p.Peer >= 0 && p.Rank >= 0 && p.Micros > 0 && p.Bytes >= 1<<16
}

// lateness finds stragglers. A rank that comes last waits least, so it has the
// shortest time in a collective: the median of the waits less its own is how late it
// came.
func (d *diag) lateness() {
	type op struct {
		comm string
		seq  int64
		name string
	}
	ops := map[op]map[int]float64{}
	where := map[string]map[int]Perf{}
	for _, p := range d.c.Perf {
		if !p.collective() {
			continue
		}
		inner(ops, op{p.Comm, p.Seq, p.Op})[p.Rank] = p.Micros
		inner(where, p.Comm)[p.Rank] = p
	}
	ranks := map[string]map[int]*tally{}
	for k, waits := range ops {
		if len(waits) >= 3 {
			tallyWaits(inner(ranks, k.comm), waits)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(ranks)) {
		for _, r := range slices.Sorted(maps.Keys(ranks[c])) {
			d.straggler(where[c][r], ranks[c][r])
		}
	}
}

// straggler judges a rank by how often, how regularly and by how much it came last; p is one of its records.
func (d *diag) straggler(p Perf, t *tally) {
	late := median(t.late)
	if t.n < 20 || float64(t.last) < 0.6*float64(t.n) || late <= 5*median(t.noise) || median(t.share) < 0.1 {
		return
	}
	f := d.find("straggler", Subject{Ranks: []int{p.Rank}, Hosts: []string{p.Host}},
		Evidence{File: p.At.File, Line: p.At.Line,
			Text: fmt.Sprintf("rank %d comes last in %d of %d collectives, %.0f us after the median", p.Rank, t.last, t.n, late)})
	f.Cause = fmt.Sprintf("rank %d is late by %.0f us in the median; the others wait for it: slow processor, GPU or data on that rank",
		p.Rank, late)
	if median(t.share) > 0.5 {
		f.Severity = Critical
	}
}

// tally is how late one rank was in the collectives of a communicator.
type tally struct {
	last, n int       // collectives to which it came last; all
	late    []float64 // microseconds after the median rank
	noise   []float64 // spread of all ranks around the median
	share   []float64 // late as a share of the median wait
}

// tallyWaits adds the waits of one collective. Who waited least came last.
func tallyWaits(ranks map[int]*tally, waits map[int]float64) {
	var all []float64
	least := -1
	for _, r := range slices.Sorted(maps.Keys(waits)) {
		all = append(all, waits[r])
		if least < 0 || waits[r] < waits[least] {
			least = r
		}
	}
	m := median(all)
	var dev []float64
	for _, w := range all {
		dev = append(dev, math.Abs(w-m))
	}
	mad := median(dev)
	for r, w := range waits {
		t := ranks[r]
		if t == nil {
			t = &tally{}
			ranks[r] = t
		}
		t.n++
		if r == least {
			t.last++
		}
		t.late = append(t.late, m-w)
		t.noise = append(t.noise, mad)
		t.share = append(t.share, (m-w)/m)
	}
}

// cell is a place in the matrix of who sends to whom.
type cell struct{ from, to int }

// matrix says which pairs of ranks are slow, and for each sender and each receiver whether its pairs are.
type matrix struct {
	median   float64 // of all pairs, in microseconds
	slow     map[cell]float64
	row, col map[int][]bool
}

// slowCells finds pairs that take more than twice the median of all pairs.
func slowCells(times map[cell][]float64) matrix {
	var all []float64
	for _, v := range times {
		all = append(all, median(v))
	}
	m := matrix{median(all), map[cell]float64{}, map[int][]bool{}, map[int][]bool{}}
	for c, v := range times {
		bad := median(v) > 2*m.median && len(v) >= 3
		if bad {
			m.slow[c] = median(v)
		}
		m.row[c.from] = append(m.row[c.from], bad)
		m.col[c.to] = append(m.col[c.to], bad)
	}
	return m
}

// mostly says whether at least four fifths of two or more are true.
func mostly(list []bool) bool {
	n := 0
	for _, b := range list {
		if b {
			n++
		}
	}
	return len(list) >= 2 && float64(n)/float64(len(list)) >= 0.8
}

// delays finds slow senders, receivers and links from point-to-point records.
func (d *diag) delays() {
	type size struct {
		comm  string
		bytes int64
	}
	mats := map[size]map[cell][]float64{}
	var host = map[int]string{}
	at := map[cell]Evidence{}
	for _, p := range d.c.Perf {
		if !p.largeMessage() {
			continue
		}
		c := cell{p.Rank, p.Peer}
		if strings.Contains(strings.ToLower(p.Op), "recv") {
			c = cell{p.Peer, p.Rank}
		}
		host[p.Rank] = p.Host
		m := inner(mats, size{p.Comm, p.Bytes})
		m[c] = append(m[c], p.Micros)
		at[c] = p.At
	}
	for _, k := range slices.SortedFunc(maps.Keys(mats),
		func(a, b size) int { return cmp.Or(natural(a.comm, b.comm), cmp.Compare(a.bytes, b.bytes)) }) {
		if len(mats[k]) < 6 {
			continue
		}
		m := slowCells(mats[k])
		for _, c := range slices.SortedFunc(maps.Keys(m.slow),
			func(a, b cell) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) }) {
			ev := at[c]
			ev.Text = fmt.Sprintf("rank %d to rank %d: %.0f us, the median is %.0f", c.from, c.to, m.slow[c], m.median)
			switch {
			case mostly(m.row[c.from]):
				d.find("slow-rank-io", Subject{Ranks: []int{c.from}, Hosts: []string{host[c.from]}},
					ev).Cause = fmt.Sprintf("everything that rank %d sends is slow: its NIC, PCIe or host", c.from)
			case mostly(m.col[c.to]):
				d.find("slow-rank-io", Subject{Ranks: []int{c.to}, Hosts: []string{host[c.to]}},
					ev).Cause = fmt.Sprintf("everything that rank %d receives is slow: its NIC, PCIe or host", c.to)
			default:
				d.find("slow-link", Subject{Ranks: []int{c.from, c.to}, Hosts: []string{host[c.from], host[c.to]},
					Links: []string{fmt.Sprintf("rank %d - rank %d", c.from, c.to)}}, ev)
			}
		}
	}
}

// drops finds lost records and bandwidth that fell.
func (d *diag) drops() {
	type who struct {
		comm string
		rank int
	}
	seqs := map[who][]int64{}
	files := map[who]Evidence{}
	bus := map[perfKind][]Perf{}
	lost := int64(0)
	for _, p := range d.c.Perf {
		lost += p.Drops
		if p.Seq >= 0 && p.Peer < 0 && p.Op != "" {
			w := who{p.Comm, p.Rank}
			seqs[w] = append(seqs[w], p.Seq)
			files[w] = p.At
		}
		if p.Bytes >= 1<<20 && p.Bus > 0 && p.Peer < 0 {
			k := perfKind{p.Comm, p.Op, p.Bytes}
			bus[k] = append(bus[k], p)
		}
	}
	kept, all := 0, int64(0)
	var ev Evidence
	for w, l := range seqs {
		slices.Sort(l)
		l = slices.Compact(l)
		kept += len(l)
		all += l[len(l)-1] - l[0] + 1
		if ev.File == "" || files[w].File < ev.File {
			ev = files[w]
		}
	}
	if all > int64(kept) || lost > 0 {
		ev.Text = fmt.Sprintf("%d of %d operations are in the records", kept, all)
		f := d.find("inspector-dropped", Subject{}, ev)
		f.Cause = fmt.Sprintf("%.1f%% of the operations were kept: its ring was overwritten, or only a part was dumped",
			100*float64(kept)/float64(max(all, 1)))
		if float64(kept) < 0.9*float64(all) && kept >= 100 {
			f.Severity = Warning
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(bus), func(a, b perfKind) int {
		return cmp.Or(natural(a.comm, b.comm), cmp.Compare(a.op, b.op), cmp.Compare(a.bytes, b.bytes))
	}) {
		d.slowedDown(k, bus[k])
	}
}

// perfKind are operations whose bandwidths can be compared.
type perfKind struct {
	comm, op string
	bytes    int64
}

// slowedDown looks for bandwidth that fell and stayed low: the medians of the last three twelfths of the operations are
// all under 80% of the median of the first three quarters. Fewer than 40 operations tell nothing.
func (d *diag) slowedDown(k perfKind, l []Perf) {
	slices.SortStableFunc(l, func(a, b Perf) int { return cmp.Compare(a.Seq, b.Seq) })
	if len(l) < 40 || l[0].Seq < 0 {
		return
	}
	var all []float64
	for _, p := range l {
		all = append(all, p.Bus)
	}
	m := median(all[:len(all)*3/4])
	w := len(all) / 12
	for i := range 3 {
		if median(all[len(all)-(i+1)*w:len(all)-i*w]) >= 0.8*m {
			return
		}
	}
	e := l[len(l)-1].At
	now := median(all[len(all)-3*w:])
	e.Text = fmt.Sprintf("%s of %d bytes: %.1f GB/s, it was %.1f", k.op, k.bytes, now, m)
	f := d.find("bandwidth-dropped", Subject{}, e)
	if now < 0.5*m {
		f.Severity = Critical
	}
}
