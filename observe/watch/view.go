package watch

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/internal/health"
)

// View is everything at an instant, as the page, the screen and JSON show it. Its keys
// are stable.
type View struct {
	Now         float64          `json:"now"`
	Title       string           `json:"title"`
	Health      Health           `json:"health"`
	Jobs        []JobView        `json:"jobs"`
	Incidents   []Incident       `json:"incidents"` // open ones first, the worst first; then the last that ended
	Heat        Heat             `json:"heat"`
	Collectives []CollectiveView `json:"collectives"`
	Late        []LateView       `json:"late"`
	Links       []LinkView       `json:"links"`
	Changes     []Change         `json:"changes"` // of the last 24 hours, newest first
}

// Health is the state of the cluster at a glance.
type Health struct {
	State    string         `json:"state"` // good, warn, bad or unknown
	Verdict  string         `json:"verdict"`
	Hosts    int            `json:"hosts"`    // that report
	Expected int            `json:"expected"` // by the cluster file, 0 without one
	Silent   int            `json:"silent"`
	Missing  int            `json:"missing"` // of the expected, that never reported
	Ports    int            `json:"ports"`
	Down     int            `json:"ports_down"`
	Checks   int            `json:"checks"`
	Bad      int            `json:"checks_bad"`
	Series   int            `json:"series"`
	Jobs     int            `json:"jobs"`
	Ranks    int            `json:"ranks"`
	Open     map[string]int `json:"open"` // incidents by severity
	Reports  int            `json:"reports"`
	Refused  int            `json:"refused"`
}

// JobView is a job.
type JobView struct {
	Job     string   `json:"job"`
	Size    int      `json:"size"`
	Ranks   int      `json:"ranks"` // that are there
	Hosts   int      `json:"hosts"`
	State   string   `json:"state"` // good, warn, bad
	Began   float64  `json:"began"`
	Quiet   float64  `json:"quiet_s"` // since an operation last ended
	Rate    float64  `json:"operations_per_s"`
	Memory  int64    `json:"memory_bytes"`
	Leaves  []string `json:"leaves"`
	Verdict string   `json:"verdict,omitempty"`
	End     string   `json:"end,omitempty"` // by its launcher: finished, failed by rank N, cancelled
}

// Row is the way from a job to a switch port.
type Row struct {
	Job     string  `json:"job"`
	Rank    int     `json:"rank"`
	Host    string  `json:"host"`
	PID     int     `json:"pid"`
	GPU     string  `json:"gpu"`
	NIC     string  `json:"nic"`
	Rail    int     `json:"rail"` // -1 unknown
	Leaf    string  `json:"leaf"`
	Port    int     `json:"port"`
	State   string  `json:"state"`
	Seq     int64   `json:"operation"`
	In      bool    `json:"waits"`
	Late    float64 `json:"late_s"`
	Last    float64 `json:"last_share"`
	Memory  int64   `json:"memory_bytes"`
	Tx      float64 `json:"tx_bytes_per_s"` // of the NIC's port; 0 unknown
	Rx      float64 `json:"rx_bytes_per_s"`
	Trouble string  `json:"trouble,omitempty"`
}

// Heat is a map of ports. A cell is a switch, or a host where switches are not known;
// columns are rails.
type Heat struct {
	Columns []string `json:"columns"`
	Rows    []string `json:"rows"`
	Cells   []Cell   `json:"cells"`
}

// Cell is one place of a heat map.
type Cell struct {
	Column int     `json:"column"`
	Row    int     `json:"row"`
	Name   string  `json:"name"`
	Ports  int     `json:"ports"`
	Down   int     `json:"down"`
	Bad    int     `json:"bad"` // ports with a check that is bad
	Warn   int     `json:"warn"`
	Tx     float64 `json:"tx_bytes_per_s"`
	Load   float64 `json:"load"` // of what the ports could send
}

// CollectiveView is an operation and size of a job against its baseline.
type CollectiveView struct {
	Job       string  `json:"job"`
	Group     string  `json:"group"`
	Op        string  `json:"op"`
	Bytes     int64   `json:"bytes"`
	Ranks     int     `json:"ranks"`
	Count     int64   `json:"count"`
	Took      float64 `json:"took_s"` // median of the last window
	Bus       float64 `json:"busbw_gb_per_s"`
	Predicted float64 `json:"predicted_s"`     // 0: no prediction
	Against   float64 `json:"predicted_ratio"` // took to predicted; 0: no prediction
	Baseline  float64 `json:"baseline_s"`      // 0: still learning
	Ratio     float64 `json:"ratio"`           // took to baseline
}

// LateView is how late a rank comes to its collectives.
type LateView struct {
	Job   string  `json:"job"`
	Group string  `json:"group"`
	Rank  int     `json:"rank"`
	Host  string  `json:"host"`
	Late  float64 `json:"late_s"`     // after the median, when it comes last
	Last  float64 `json:"last_share"` // of slices in which it is the latest
	Cost  float64 `json:"cost"`       // share of the time that others wait for it
}

// LinkView is the delay matrix of a job.
type LinkView struct {
	Job   string     `json:"job"`
	Ranks []int      `json:"ranks"`
	Cells []LinkCell `json:"cells"`
}

// LinkCell is one sender and receiver.
type LinkCell struct {
	From  int     `json:"from"`
	To    int     `json:"to"`
	MBps  float64 `json:"mb_per_s"` // while there was something to send
	Bytes float64 `json:"bytes"`
	Ratio float64 `json:"ratio"` // delay to the median delay

	Predicted float64 `json:"predicted_mb_per_s,omitempty"` // what such a link reached when the ranks met; 0 unknown
	Against   float64 `json:"predicted_ratio,omitempty"`    // measured to predicted
	Cut       bool    `json:"cut,omitempty"`
}

// What a view holds at most; /api/table pages through all ranks.
const (
	viewRows    = 200
	viewHistory = 100
)

// View gives everything at an instant.
func (m *Machine) View(now float64) View {
	v := View{Now: now, Title: m.c.Title, Jobs: []JobView{}, Incidents: []Incident{}, Collectives: []CollectiveView{}, Late: []LateView{},
		Links: []LinkView{}, Changes: []Change{}}
	v.Incidents = m.incidents()
	v.Health = m.health(now)
	for _, name := range slices.Sorted(maps.Keys(m.jobs)) {
		if len(v.Jobs) < viewRows {
			v.Jobs = append(v.Jobs, m.job(now, m.jobs[name]))
		}
		m.jobParts(now, m.jobs[name], &v)
	}
	slices.SortStableFunc(v.Late, func(a, b LateView) int { return cmp.Or(cmp.Compare(b.Cost, a.Cost), cmp.Compare(b.Late, a.Late)) })
	v.Late = v.Late[:min(len(v.Late), viewRows)]
	slices.SortStableFunc(v.Collectives, func(a, b CollectiveView) int {
		return cmp.Or(cmp.Compare(b.Ratio, a.Ratio), cmp.Compare(b.Bytes, a.Bytes))
	})
	v.Collectives = v.Collectives[:min(len(v.Collectives), viewRows)]
	if m.heatAt == 0 || now-m.heatAt >= 5 || now < m.heatAt { // ports report every ten seconds
		m.heatAt, m.heated = now, m.heat(now)
	}
	v.Heat = m.heated
	for i := len(m.changes) - 1; i >= 0 && len(v.Changes) < viewRows; i-- {
		if now-m.changes[i].At <= 86400 {
			v.Changes = append(v.Changes, m.changes[i])
		}
	}
	return v
}

// incidents lists open ones, the worst first, and then the last that ended.
func (m *Machine) incidents() []Incident {
	out := []Incident{}
	for _, i := range m.ordered() {
		out = append(out, *i)
	}
	out = out[:min(len(out), viewRows)]
	for i := len(m.past) - 1; i >= 0 && i >= len(m.past)-viewHistory; i-- {
		out = append(out, *m.past[i])
	}
	return out
}

// counted is a Health with nothing but its numbers.
func (m *Machine) counted(now float64) Health {
	h := Health{State: "good", Open: map[string]int{}, Jobs: len(m.jobs), Reports: m.counts.reports, Refused: m.counts.refused}
	if m.c.Site != nil {
		for _, name := range m.c.Site.Hosts() {
			h.Expected++
			if m.hosts[name] == nil {
				h.Missing++
			}
		}
	}
	for _, x := range m.hosts {
		h.countHost(x)
		if now-x.at > m.limit(x) {
			h.Silent++
		}
	}
	for _, j := range m.jobs {
		h.Ranks += j.count().alive
	}
	return h
}

func (h *Health) countHost(x *host) {
	h.Hosts++
	h.Checks += x.checks
	h.Bad += len(x.states)
	h.Series += len(x.values)
	for _, p := range x.ports {
		if h.Ports++; !p.Active {
			h.Down++
		}
	}
}

// health sums up the cluster: its worst incident gives the state and the verdict.
func (m *Machine) health(now float64) Health {
	h := m.counted(now)
	worst := doctor.Info
	var first *Incident
	for _, i := range m.ordered() {
		h.Open[i.Severity.String()]++
		if first == nil {
			worst, first = i.Severity, i
		}
	}
	switch {
	case h.Hosts == 0:
		h.State, h.Verdict = "unknown", "no agent has reported yet"
	case worst == doctor.Critical:
		h.State, h.Verdict = "bad", first.Verdict
	case first != nil:
		h.State, h.Verdict = "warn", first.Verdict
	default:
		h.Verdict = fmt.Sprintf("nothing is wrong: %s, %s, %s", counted(h.Hosts, "host"), counted(h.Checks, "check"), counted(h.Jobs, "job"))
		if h.Missing > 0 {
			h.Verdict += fmt.Sprintf("; %d of %d hosts of the cluster file have not reported", h.Missing, h.Expected)
		}
	}
	if n := len(m.open); n > 1 {
		h.Verdict += fmt.Sprintf("; %d incidents in all", n)
	}
	return h
}

func (m *Machine) job(now float64, j *job) JobView {
	v := JobView{Job: j.name, Size: j.size, State: "good", Began: j.began, Quiet: now - j.moved, Leaves: []string{}, End: j.end()}
	hosts, leaves := map[string]bool{}, map[string]bool{}
	for _, r := range j.ranks {
		if r.gone == 0 {
			v.Ranks++
			v.Memory += r.Memory
			hosts[r.host] = true
			if r.place.Leaf != "" {
				leaves[r.place.Leaf] = true
			}
		}
	}
	v.Hosts, v.Leaves = len(hosts), append(v.Leaves, slices.Sorted(maps.Keys(leaves))...)
	v.Leaves = v.Leaves[:min(len(v.Leaves), 32)]
	for _, g := range j.group {
		if g.step > 0 {
			v.Rate += 1 / g.step
		}
	}
	for _, i := range m.ordered() {
		if i.Job == j.name && v.Verdict == "" {
			v.Verdict = i.Verdict
			v.State = map[bool]string{true: "bad", false: "warn"}[i.Severity == doctor.Critical]
		}
	}
	return v
}

func (m *Machine) jobParts(now float64, j *job, v *View) {
	for _, gn := range slices.Sorted(maps.Keys(j.group)) {
		g := j.group[gn]
		for _, r := range slices.Sorted(maps.Keys(g.late)) {
			l := g.late[r]
			x := LateView{Job: j.name, Group: gn, Rank: r, Late: l.late, Last: l.share, Cost: l.cost}
			if k := j.ranks[r]; k != nil {
				x.Host = k.host
			}
			v.Late = append(v.Late, x)
		}
		for _, k := range slices.Sorted(maps.Keys(g.per)) {
			t := g.per[k]
			took := t.mean
			if took == 0 {
				took = median(t.took)
			}
			c := CollectiveView{Job: j.name, Group: gn, Op: t.op, Bytes: t.bytes, Ranks: t.ranks, Count: t.count, Took: took,
				Predicted: cmp.Or(t.told, t.predict), Baseline: t.base, Ratio: t.ratio}
			if c.Predicted > 0 {
				c.Against = took / c.Predicted
			}
			if took > 0 {
				c.Bus = float64(t.bytes) / took / 1e9 * busFactor(t.op, t.ranks)
			}
			v.Collectives = append(v.Collectives, c)
		}
	}
	l := LinkView{Job: j.name, Ranks: []int{}, Cells: []LinkCell{}}
	var all []float64
	in := map[int]bool{}
	for _, k := range slices.SortedFunc(maps.Keys(j.links), byPair) {
		d, bytes, ok, cut := j.links[k].delay(now)
		if !ok && !cut {
			continue
		}
		in[k.from], in[k.to] = true, true
		c := LinkCell{From: k.from, To: k.to, Bytes: bytes, Cut: cut}
		if ok {
			c.MBps = 1e-6 / d
			all = append(all, d)
			if c.Predicted = j.linkRate(k) / 1e6; c.Predicted > 0 && !math.IsInf(c.MBps, 0) {
				c.Against = c.MBps / c.Predicted
			}
		}
		l.Cells = append(l.Cells, c)
	}
	if len(l.Cells) == 0 || len(v.Links) >= 8 {
		return
	}
	mid := median(all)
	for i := range l.Cells {
		if c := &l.Cells[i]; c.MBps > 0 && mid > 0 {
			c.Ratio = 1e-6 / c.MBps / mid
			if math.IsInf(c.MBps, 0) || math.IsInf(c.Ratio, 0) {
				c.MBps, c.Ratio = 0, 0
			}
		}
	}
	l.Ranks = slices.Sorted(maps.Keys(in))
	v.Links = append(v.Links, l)
}

// busFactor turns algorithm bandwidth into bus bandwidth.
func busFactor(op string, ranks int) float64 {
	if c, err := sched.ParseCollective(op); err == nil {
		return c.BusFactor(ranks)
	}
	return 1
}

// Table is the joined rows of one job, or of all with "", from a number on. total is how
// many there are.
func (m *Machine) Table(job, host string, from, most int) (rows []Row, total int) {
	rows = []Row{}
	trouble := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(m.open)) {
		i := m.open[k]
		for _, r := range i.Subject.Ranks {
			if i.Job != "" {
				trouble[rankKey(i.Job, r)] = i.Kind
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.jobs)) {
		if job != "" && name != job {
			continue
		}
		j := m.jobs[name]
		for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
			r := j.ranks[n]
			if host != "" && r.host != host {
				continue
			}
			if total++; total <= from || len(rows) >= most {
				continue
			}
			x := Row{Job: name, Rank: n, Host: r.host, PID: r.PID, GPU: r.GPU, NIC: cmp.Or(r.place.NIC, r.NIC), Rail: r.place.Rail,
				Leaf: r.place.Leaf, Port: r.place.Port, State: r.State, Memory: r.Memory, Trouble: trouble[rankKey(name, n)]}
			x.Tx, x.Rx = m.passing(r)
			if r.gone > 0 {
				x.State = "gone"
			}
			for _, gn := range slices.Sorted(maps.Keys(r.groups)) {
				g := r.groups[gn]
				if g.Done > x.Seq {
					x.Seq = g.Done
				}
				x.In = x.In || g.In
				if grp := j.group[gn]; grp != nil {
					if l := grp.late[n]; l != nil && l.late > x.Late {
						x.Late, x.Last = l.late, l.share
					}
				}
			}
			rows = append(rows, x)
		}
	}
	return rows, total
}

// Series are the names and last values of a host.
func (m *Machine) Series(host string) (names []string, values []float64) {
	h := m.hosts[host]
	if h == nil {
		return nil, nil
	}
	return m.schemas[h.schema], h.values
}

// Names are those of a schema.
func (m *Machine) Names(schema string) []string { return m.schemas[schema] }

// Hosts lists the hosts that reported, with their states.
func (m *Machine) Hosts(now float64) []HostView {
	list := make([]HostView, 0, len(m.hosts))
	for _, name := range slices.SortedFunc(maps.Keys(m.hosts), natural) {
		h := m.hosts[name]
		v := HostView{Host: name, Age: now - h.at, Ranks: len(h.ranks), Ports: len(h.ports), Checks: h.checks, Skew: h.skew, State: "good"}
		for _, s := range h.states {
			if s.State == health.Bad {
				v.State = "bad"
			} else if v.State == "good" {
				v.State = "warn"
			}
		}
		if now-h.at > m.limit(h) {
			v.State = "unknown"
		}
		list = append(list, v)
	}
	return list
}

// HostView is a host in short.
type HostView struct {
	Host   string  `json:"host"`
	State  string  `json:"state"`
	Age    float64 `json:"age_s"`
	Ranks  int     `json:"ranks"`
	Ports  int     `json:"ports"`
	Checks int     `json:"checks"`
	Skew   float64 `json:"clock_s"`
}

// cutNumber cuts a name around its first number, which is -1 if it has none. Longer ones are cut at 15 digits.
func cutNumber(s string) (before string, n int, after string) {
	i := strings.IndexAny(s, "0123456789")
	if i < 0 {
		return s, -1, ""
	}
	k := i
	for k < len(s) && s[k] >= '0' && s[k] <= '9' && k-i < 15 {
		n = n*10 + int(s[k]-'0')
		k++
	}
	return s[:i], n, s[k:]
}

// natural orders names with numbers as people do.
func natural(a, b string) int {
	for a != b {
		x, n, ra := cutNumber(a)
		y, k, rb := cutNumber(b)
		if c := cmp.Or(strings.Compare(x, y), cmp.Compare(n, k)); c != 0 || n < 0 {
			return c
		}
		if a, b = ra, rb; a == "" || b == "" {
			return len(a) - len(b)
		}
	}
	return 0
}

// HostCount is how many hosts have reported.
func (m *Machine) HostCount() int { return len(m.hosts) }

// counted is a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
