package watch

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/internal/health"
)

// Config of a machine. Zero values mean what the comments say.
type Config struct {
	Title string
	Site  *doctor.Site // nil without a cluster file
	// Predict says how long an operation should take, in seconds; 0 if it cannot be
	// said. It must not take long: false is an answer that comes later, when it is asked
	// again.
	Predict func(op string, bytes int64, ranks int) (seconds float64, known bool)
	// Hang is how long no operation of a job may end while ranks wait, in seconds; 30
	// if 0. A job that writes a checkpoint for longer while ranks wait needs more.
	Hang float64
	// Silent is how long a host may say nothing, in seconds; three times what it
	// promised, and at least 10, if 0.
	Silent float64
	// Elastic jobs replace their ranks themselves: a new process in the place of
	// another one is no incident of its own.
	Elastic bool
}

// What is kept, however long it runs.
const (
	incidentsKept = 500 // that are over
	changesKept   = 2000
	evidenceKept  = 12
	opsKept       = 512     // of a group
	waitForOthers = 3.0     // seconds for which others must go on until a rank that is gone is dead
	startTime     = 60.0    // seconds in which the ranks of a job start one after another
	forgotten     = 86400.0 // seconds of silence after which a host is not watched any more
	settle        = 3       // evaluations in a row that make a verdict of a measurement
	ranksKept     = 1 << 20
)

// Machine joins what agents report and finds what is wrong. Time is an argument: the
// clock of the server in seconds since 1970. It is for one goroutine.
type Machine struct {
	c       Config
	hosts   map[string]*host
	jobs    map[string]*job
	schemas map[string][]string
	open    map[string]*Incident
	past    []*Incident
	next    int
	changes []Change
	dumps   map[string][]doctor.Dump // by job
	dumped  map[string]float64       // when the last one came
	calib   map[string]*calibration  // by operation and size
	predict map[string]float64
	seen    map[string]int // how many evaluations in a row a measurement was bad
	last    float64        // of Tick
	slowAt  float64        // of the slow part of Tick
	counts  struct{ reports, refused int }
	news    []Incident
	told    int  // changes that News gave
	heated  Heat // at heatAt
	heatAt  float64
	trouble string     // of the store
	stand   []standing // verdicts of the slow part of Tick
}

type host struct {
	name, boot  string
	first, at   float64 // by the server's clock
	every       float64
	skew        float64 // how far its clock is ahead of the server's, by clock
	clock       offset
	schema      string
	values      []float64
	states      []health.Status
	checks      int
	ports       []*port
	facts       map[string]string
	ranks       map[string]bool // keys of job and rank that it reported last
	hasCounters bool
	load        Load
	hungry      float64 // when it last said that it is starved, 0 never
}

// fed is how long after its last word a host that was starved counts as such, in seconds.
const fed = 10

// starved says that the host was starved when it was last heard. An agent that gets no processor says nothing.
func (h *host) starved() bool { return h != nil && h.hungry > 0 && h.at-h.hungry < fed }

type port struct {
	Port
	at         float64
	txRate     float64 // bytes a second
	rxRate     float64
	waitRate   float64
	has        bool
	place      doctor.Place
	placeKnown bool
}

type job struct {
	name  string
	size  int
	ranks map[int]*rank
	group map[string]*group
	began float64
	moved float64   // when an operation of any rank last ended
	still float64   // from when on none had ended, the last time that none did for a while
	alive float64   // when a rank was last seen
	again []restart // processes that took the place of others and were not told of yet
	links map[pair]*flow
	ends  map[string]int // both addresses of a connection, to the rank at its first

	launcher   bool              // it reports what becomes of the ranks
	deaths     []death           // of this attempt, as launchers told, by their times
	cause      *death            // the one that explains the others; nil before it is known
	over       string            // finished, failed or cancelled; "" while it goes on
	overBy     int               // the rank that failed first
	words      map[[2]int]Launch // why processes ended, by rank and process
	failedHost string            // by its scheduler
	differ     []int             // ranks that called another operation than the rest, and so ended the job
	lost       string            // the host that went silent and with which the job stopped
}

type rank struct {
	Rank
	host   string
	at     float64
	first  float64
	gone   float64 // since when it is not reported any more, 0 if it is
	place  doctor.Place
	groups map[string]*Group
	moved  float64
	marks  [2]mark // of what it has used since it moved, the older one first
}

// group is what all ranks of a communicator said of its operations.
type group struct {
	name  string
	ops   map[int64]*opSeen
	order []int64
	late  map[int]*latest
	per   map[string]*timing // by operation and size
	step  float64            // seconds between operations of which lateness is judged
}

type opSeen struct {
	name  string
	bytes int64
	at    float64
	took  map[int]float64
	full  bool    // all have told
	mid   float64 // the median of the times then
	least int     // the rank that took least

	predicted float64 // seconds, by the library that ran it; 0 unknown
}

// latest is what is known of a rank's lateness.
type latest struct {
	late  float64 // seconds after the median, in the mean of the operations in which it was last
	share float64 // of slices in which it was the latest
	cost  float64 // share of the time that others wait for it
	n     int     // operations that were judged

	top, telling int // slices in which it was the latest, and those in which somebody was late
	last         int // operations in which it was the last
}

// New makes a machine without a past.
func New(c Config) *Machine {
	if c.Hang == 0 {
		c.Hang = 30
	}
	m := &Machine{c: c, hosts: map[string]*host{}, jobs: map[string]*job{}, schemas: map[string][]string{}, open: map[string]*Incident{},
		dumps: map[string][]doctor.Dump{}, dumped: map[string]float64{},
		calib: map[string]*calibration{}, predict: map[string]float64{}, seen: map[string]int{}, next: 1}
	return m
}

// ErrSchema says that a report names a schema whose names the server does not know: the
// agent sends them with its next report.
var ErrSchema = fmt.Errorf("the names of the series are not known: send them")

// Check says what is wrong with a report before it is taken.
func (r *Report) Check() error {
	switch {
	case r.Host == "":
		return fmt.Errorf("the report names no host")
	case len(r.Host) > 253 || strings.ContainsAny(r.Host, " \n\t/\x00"):
		return fmt.Errorf("%q is not a host name", r.Host)
	case !finite(r.At) || !(r.Every >= 0 && r.Every <= 86400):
		return fmt.Errorf("the report of %s has no valid time", r.Host)
	case len(r.Launches) > 1<<17:
		return fmt.Errorf("%d launcher lines from host %s; the limit is %d", len(r.Launches), r.Host, 1<<17)
	case len(r.Ranks) > 4096:
		return fmt.Errorf("%d ranks from host %s; the limit is 4096", len(r.Ranks), r.Host)
	}
	if c := r.Counters; c != nil {
		if c.Names != nil && len(c.Names) != len(c.Values) {
			return fmt.Errorf("%d names and %d values in the report of %s", len(c.Names), len(c.Values), r.Host)
		}
		if len(c.Values) > 100_000 {
			return fmt.Errorf("%d series from host %s; the limit is 100,000", len(c.Values), r.Host)
		}
	}
	for i := range r.Launches {
		if l := &r.Launches[i]; l.Rank < 0 && l.Event != "over" || !ranked(max(l.Rank, 0), l.Size) || !finite(l.At) {
			return fmt.Errorf("a launcher on host %s reports rank %d of %d; ranks are below %d", r.Host, l.Rank, l.Size, ranksKept)
		}
	}
	for i := range r.Ranks {
		if x := &r.Ranks[i]; !ranked(x.Rank, x.Size) {
			return fmt.Errorf("rank %d of %d on host %s; ranks are below %d", x.Rank, x.Size, r.Host, ranksKept)
		}
	}
	return nil
}

// ranked says whether a rank and a number of ranks are small enough to be kept; 0 ranks are an unknown number.
func ranked(rank, size int) bool {
	return rank >= 0 && rank < ranksKept && size >= 0 && size <= ranksKept
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Observe takes a report that arrived now. ErrSchema asks for names; nothing was taken
// then.
func (m *Machine) Observe(now float64, r *Report) error {
	if err := r.Check(); err != nil {
		m.counts.refused++
		return err
	}
	if c := r.Counters; c != nil {
		if c.Names != nil {
			if _, ok := m.schemas[c.Schema]; !ok {
				m.schemas[c.Schema] = slices.Clone(c.Names)
			}
		}
		if names, ok := m.schemas[c.Schema]; len(c.Values) > 0 && (!ok || len(names) != len(c.Values)) {
			return ErrSchema
		}
	}
	m.counts.reports++
	if r.From != "" { // no host of the cluster
		for _, l := range r.Launches {
			m.launch(now, l)
		}
		return nil
	}
	h := m.hosts[r.Host]
	if h == nil {
		h = &host{name: r.Host, first: now, facts: map[string]string{}, ranks: map[string]bool{}}
		m.hosts[r.Host] = h
	}
	if h.boot != "" && r.Boot != "" && h.boot != r.Boot {
		m.change(Change{At: now, Host: r.Host, What: "the host started again", From: h.boot, To: r.Boot})
	}
	h.boot = cmp.Or(r.Boot, h.boot)
	h.at, h.every, h.skew = now, r.Every, h.clock.add(r.At-now)
	if r.Load != nil {
		h.load = *r.Load
	}
	if r.Load.Starved() {
		h.hungry = now
	}
	if r.Counters != nil {
		m.counters(now, h, r.Counters)
	}
	if r.HasRanks {
		m.ranks(now, h, r.Ranks)
	}
	for _, l := range r.Launches {
		l.At -= h.clock.off()
		m.launch(now, l)
	}
	for _, d := range r.Dumps {
		m.dump(now, d)
	}
	return nil
}

// counters takes the counters of a report. Rates are over the time between two reports of the host. A fact that
// changes, like firmware, is noted as a change.
func (m *Machine) counters(now float64, h *host, c *Counters) {
	h.schema, h.states, h.checks = c.Schema, slices.Clone(c.States), c.Checks
	h.values = append(h.values[:0], c.Values...)
	h.hasCounters = true
	for i, p := range c.Ports {
		if i >= len(h.ports) || h.ports[i].Device != p.Device || h.ports[i].Port.Port != p.Port {
			h.ports = h.ports[:min(i, len(h.ports))]
			h.ports = append(h.ports, &port{})
		}
		x := h.ports[i]
		if x.has && now > x.at {
			dt := now - x.at
			x.txRate, x.rxRate, x.waitRate = grown(p.Tx, x.Tx)/dt, grown(p.Rx, x.Rx)/dt, grown(p.Wait, x.Wait)/dt
		}
		x.Port, x.at, x.has = p, now, true
		if !x.placeKnown {
			x.placeKnown = true
			x.place.Rail = -1
			if m.c.Site != nil {
				if at, ok := m.c.Site.Place(h.name, p.Device); ok {
					x.place = at
				}
			}
		}
	}
	h.ports = h.ports[:len(c.Ports)]
	for _, k := range slices.Sorted(maps.Keys(c.Facts)) {
		v := c.Facts[k]
		if was, ok := h.facts[k]; ok && was != v {
			m.change(Change{At: now, Host: h.name, What: k, From: was, To: v})
		} else if !ok && len(h.facts) > 0 && now-h.first > 60 {
			m.change(Change{At: now, Host: h.name, What: k, To: v})
		}
	}
	if c.Facts != nil {
		for _, k := range slices.Sorted(maps.Keys(h.facts)) {
			if _, ok := c.Facts[k]; !ok {
				m.change(Change{At: now, Host: h.name, What: k, From: h.facts[k]})
			}
		}
		h.facts = maps.Clone(c.Facts)
	}
}

// grown is how much a counter grew; one that went down was reset.
func grown(now, was float64) float64 {
	if now < was {
		return now
	}
	return now - was
}

func (m *Machine) change(c Change) {
	m.changes = append(m.changes, c)
	if n := len(m.changes); n > changesKept {
		m.changes = slices.Delete(m.changes, 0, n-changesKept)
		m.told = max(0, m.told-(n-changesKept))
	}
}

func rankKey(job string, rank int) string { return fmt.Sprintf("%s/%d", job, rank) }

// unreaped says whether the process has ended and its parent has not asked how.
func (r *Rank) unreaped() bool { return r.State == "Z" || r.State == "X" }

// ranks takes what a host's agent says of the ranks there.
func (m *Machine) ranks(now float64, h *host, list []Rank) {
	had := h.ranks
	h.ranks = map[string]bool{}
	for i := range list {
		x := &list[i]
		if x.unreaped() {
			continue
		}
		j := m.jobNamed(now, x.Job)
		j.size = max(j.size, x.Size, x.Rank+1)
		j.alive = now
		r := j.ranks[x.Rank]
		if r == nil {
			r = m.newRank(now, h, x)
			j.ranks[x.Rank] = r
		} else if r.gone > 0 || r.PID != x.PID && r.host == h.name {
			m.replaced(now, j, r, x)
			r.groups, r.first, r.moved, r.marks = map[string]*Group{}, now, now, [2]mark{}
		}
		r.host, r.at, r.gone = h.name, now, 0
		groups, links := x.Groups, x.Links
		had := r.Links
		r.Rank = *x
		r.Groups, r.Links = nil, had
		h.ranks[rankKey(x.Job, x.Rank)] = true
		for k := range groups {
			m.progress(now, j, r, &groups[k])
		}
		r.mark(now, m.c.Hang/2)
		m.flows(now, j, r, links)
	}
	for k := range had {
		if !h.ranks[k] {
			m.goneFrom(now, h, k)
		}
	}
}

func (m *Machine) newRank(now float64, h *host, x *Rank) *rank {
	r := &rank{first: now, moved: now, groups: map[string]*Group{}, place: doctor.Place{Rail: -1}}
	if m.c.Site == nil {
		return r
	}
	if at, ok := m.c.Site.Place(h.name, cmp.Or(x.NIC, "gpu"+x.GPU)); ok {
		r.place = at
	}
	return r
}

// goneFrom notes that a host no longer has a rank, by its rankKey. The rank may have come back on another host.
func (m *Machine) goneFrom(now float64, h *host, key string) {
	name, n := key[:strings.LastIndexByte(key, '/')], 0
	fmt.Sscanf(key[strings.LastIndexByte(key, '/')+1:], "%d", &n)
	if j := m.jobs[name]; j != nil && j.ranks[n] != nil && j.ranks[n].host == h.name && j.ranks[n].gone == 0 {
		j.ranks[n].gone = now
	}
}

// move notes that a rank went on, and since when the job had stood still if it did.
func (j *job) move(now float64, r *rank) {
	if now-j.moved >= leaving {
		j.still = j.moved
	}
	r.moved, j.moved, r.marks = now, now, [2]mark{}
}

func (j *job) groupNamed(name string) *group {
	x := j.group[name]
	if x == nil {
		x = &group{name: name, ops: map[int64]*opSeen{}, late: map[int]*latest{}, per: map[string]*timing{}}
		j.group[name] = x
	}
	return x
}

// progress takes what a rank says of a group.
func (m *Machine) progress(now float64, j *job, r *rank, g *Group) {
	was := r.groups[g.Name]
	ops := g.Ops
	keep := *g
	keep.Ops = nil
	if was != nil {
		keep.Op = cmp.Or(keep.Op, was.Op)
		if len(keep.Ranks) == 0 {
			keep.Ranks = was.Ranks
		}
		if g.Done < was.Done { // the communicator was made again
			delete(j.group, g.Name)
		}
	}
	if was == nil || was.Done != g.Done {
		j.move(now, r)
	}
	r.groups[g.Name] = &keep
	x := j.groupNamed(g.Name)
	for i := range ops {
		o := &ops[i]
		if math.IsNaN(o.Took) || o.Took < 0 {
			continue
		}
		if s := x.op(now, o); s != nil {
			s.took[r.Rank.Rank] = o.Took
			s.predicted = max(s.predicted, o.Predicted)
		}
	}
}

// op finds an operation of the group, or adds it and drops the oldest one; nil is one that was dropped before.
func (x *group) op(now float64, o *Op) *opSeen {
	s := x.ops[o.Seq]
	if s != nil {
		return s
	}
	if len(x.order) > 0 && o.Seq < x.order[0] {
		return nil
	}
	s = &opSeen{name: o.Name, bytes: o.Bytes, at: now, took: map[int]float64{}}
	x.ops[o.Seq] = s
	i, _ := slices.BinarySearch(x.order, o.Seq)
	x.order = slices.Insert(x.order, i, o.Seq)
	if len(x.order) > opsKept {
		delete(x.ops, x.order[0])
		x.order = x.order[1:]
	}
	return s
}

// dump takes a flight record. Those of one job are joined by the ranks in them.
func (m *Machine) dump(now float64, d Dump) {
	list := slices.DeleteFunc(m.dumps[d.Job], func(o doctor.Dump) bool { return o.File == d.File })
	if len(list) < 4096 && (len(m.dumps) < 1024 || m.dumps[d.Job] != nil) {
		m.dumps[d.Job] = append(list, d.Dump)
		m.dumped[d.Job] = now
	}
}

// end closes incidents that were not found again for the quiet time of their kind.
func (m *Machine) end(now float64, found map[string]bool) {
	for _, k := range slices.Sorted(maps.Keys(m.open)) {
		i := m.open[k]
		if !found[k] && now-i.Seen >= Kinds[i.Kind].Quiet {
			i.Ended = now
			delete(m.open, k)
			m.past = append(m.past, i)
			m.news = append(m.news, *i)
		}
	}
	if n := len(m.past); n > incidentsKept {
		m.past = slices.Delete(m.past, 0, n-incidentsKept)
	}
}

// Tick looks at everything and gives the incidents that opened, and those that ended,
// since the last one. Call it once or twice a second.
func (m *Machine) Tick(now float64) []Incident {
	found := map[string]bool{}
	raise := func(key string, i Incident) {
		found[key] = true
		m.raise(now, key, i)
	}
	for _, name := range slices.Sorted(maps.Keys(m.jobs)) {
		j := m.jobs[name]
		if now-j.alive > 60 && !m.reporting(j) {
			delete(m.jobs, name) // it has ended
			continue
		}
		m.restarted(now, j, raise)
		m.launched(now, j, raise)
		m.processes(now, j, raise)
		m.absent(now, j, raise)
		if !j.explained() { // who comes late to a job that is ending says nothing
			m.matrix(now, j, raise)
			m.lateness(now, j, raise)
		}
		m.hang(now, j, raise)
	}
	m.silent(now, raise)
	maps.DeleteFunc(m.dumps, func(name string, _ []doctor.Dump) bool { return m.jobs[name] == nil && now-m.dumped[name] > 60 })
	maps.DeleteFunc(m.dumped, func(name string, _ float64) bool { return m.dumps[name] == nil })
	m.checks(now, raise)
	if math.Floor(now/10) != math.Floor(m.slowAt/10) { // at the same times, whenever it began
		m.slowAt = now
		m.roles(now)
		m.collectives(now)
	}
	m.sustained(now, raise)
	if m.trouble != "" {
		raise("store", Incident{Kind: "store", Severity: doctor.Warning, Confidence: 1, Verdict: "history is not being written: " + m.trouble})
	}
	m.relate()
	m.end(now, found)
	m.last = now
	out := m.news
	m.news = nil
	return out
}

// Pause says that nobody judged or took reports between two times: what was not heard then is no silence.
func (m *Machine) Pause(from, to float64) {
	d := max(0, to-from)
	later := func(at *float64) { *at = min(*at+d, to) }
	for _, h := range m.hosts {
		later(&h.at)
	}
	for _, j := range m.jobs {
		later(&j.moved)
		later(&j.still)
		later(&j.alive)
		for _, r := range j.ranks {
			later(&r.at)
			later(&r.moved)
		}
	}
}

// Restore brings back what an earlier server knew: incidents and changes in the order in
// which they were. Those that were open end when they were last seen: they open again if
// they are still so.
func (m *Machine) Restore(incidents []Incident, changes []Change) {
	for _, i := range incidents {
		if m.next = max(m.next, i.ID+1); i.Ended == 0 {
			i.Ended = i.Seen
		}
		m.past = append(m.past, &i)
	}
	m.past = m.past[max(0, len(m.past)-incidentsKept):]
	for _, c := range changes {
		m.change(c)
	}
	m.told = len(m.changes)
}

// News are the changes since the last call.
func (m *Machine) News() []Change {
	list := slices.Clone(m.changes[min(m.told, len(m.changes)):])
	m.told = len(m.changes)
	return list
}

// Store says that history cannot be written, or with "" that it can.
func (m *Machine) Store(trouble string) { m.trouble = trouble }

// reporting says whether a host of the job still reports ranks of it.
func (m *Machine) reporting(j *job) bool {
	for n, r := range j.ranks {
		if h := m.hosts[r.host]; h != nil && h.ranks[rankKey(j.name, n)] {
			return true
		}
	}
	return false
}

// held counts evaluations in a row in which something was so.
func (m *Machine) held(key string, so bool) bool {
	if !so {
		delete(m.seen, key)
		return false
	}
	m.seen[key]++
	return m.seen[key] >= settle
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	s := slices.Clone(list)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
