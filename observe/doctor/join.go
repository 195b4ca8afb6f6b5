package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Joining lines to ranks. A line names a host, a process, a thread and a device. Init
// lines tie those to a communicator and a rank; from 2.16 on a communicator has an
// id that all its ranks share, before that it is told apart by size and order.

// proc is a process that printed NCCL lines.
type proc struct {
	host    string
	pid     int
	lines   []*Line
	members []*member
	version string
	verLine *Line
	driver  string
	env     map[string]*Line
	job     *job
}

// member is one rank of a communicator.
type member struct {
	comm     *comm
	proc     *proc
	rank     int
	dev      int
	bus      string
	start    *Line
	done     *Line
	end      *Line
	boot     *Line // bootstrap timings
	timings  *Line
	shape    *Line
	channels *Line
	ringsUp  *Line
	via      []*Line
	colls    []*Line
	wc       []*Line
}

func (m *member) first() *Line {
	if m.start != nil {
		return m.start
	}
	return m.done
}

// comm is a communicator.
type comm struct {
	key     string
	id      string
	n       int
	members map[int]*member
	mixed   bool // without an id, and several of its size: who belongs to it is a guess
}

func (c *comm) ranks() []int { return slices.Sorted(maps.Keys(c.members)) }

// job is the processes that share communicators.
type job struct {
	name   string
	procs  []*proc
	comms  []*comm
	world  *comm
	silent []int   // ranks that should have said that the job came to a halt, and did not
	loose  []*Line // lines that name no process

	slurm   string          // the number that Slurm gave it
	folders []string        // of its files without processes
	at      map[int]string  // the hosts of its ranks, by lines without processes
	told    map[string]bool // hosts that those name
	files   map[string]bool // that it has lines in; see has
}

// joined is all jobs of a case.
type joined struct {
	jobs  []*job
	procs map[string]*proc
	order []*proc
	addr  map[string]string // address to host
}

// mostRanks is more than any job has.
const mostRanks = 1 << 20

func num(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

// join puts the lines of all processes together into communicators and jobs. Lines without a process stay loose and are
// placed at the end, by file and host.
func join(c *Case) *joined {
	j := &joiner{
		joined: &joined{procs: map[string]*proc{}, addr: map[string]string{}},
		comms:  map[string]*comm{}, cur: map[string]*member{}, byPtr: map[string]*member{}, newest: map[string]*member{},
		sized: map[string]int{}, slots: map[int]int{}, pending: map[string][]early{},
	}
	var loose []*Line
	for i := range c.Lines {
		l := &c.Lines[i]
		if l.PID <= 0 || l.Host == "" {
			loose = append(loose, l)
			continue
		}
		j.line(l)
		for _, a := range addresses(l) {
			j.addr[a] = l.Host
		}
	}
	for _, thread := range slices.Sorted(maps.Keys(j.pending)) {
		for _, e := range j.pending[thread] {
			e.other.setup(e.l)
		}
	}
	for _, co := range j.commOrder {
		co.mixed = co.id == "" && j.slots[co.n] > 0
	}
	j.group(j.commOrder, loose)
	return j.joined
}

// joiner is what is known while lines are read.
type joiner struct {
	*joined
	comms     map[string]*comm
	commOrder []*comm
	cur       map[string]*member // by host, process and thread: the communicator it is setting up
	byPtr     map[string]*member // by process and comm pointer
	newest    map[string]*member // by host, process, device
	sized     map[string]int     // communicators of a process, by size and rank
	slots     map[int]int        // of the communicators of a size without an id
	// Before 2.18.3 a communicator is named when it is done: what its thread says of it stands
	// before that.
	pending map[string][]early // by thread
}

// early is a line that came before the communicator it belongs to was named.
type early struct {
	l     *Line
	other *member // whose it is if the thread makes no further communicator
}

// setup keeps a line that tells how the member was connected.
func (m *member) setup(l *Line) {
	switch {
	case m == nil:
	case l.Kind == "channels" && m.channels == nil:
		m.channels = l
	case l.Kind == "rings_up":
		m.ringsUp = l
	case l.Kind != "channels":
		m.via = append(m.via, l)
	}
}

// process is the one that printed a line.
func (j *joiner) process(key string, l *Line) *proc {
	p := j.procs[key]
	if p == nil {
		p = &proc{host: l.Host, pid: l.PID, env: map[string]*Line{}}
		j.procs[key] = p
		j.order = append(j.order, p)
	}
	p.lines = append(p.lines, l)
	return p
}

// line files a line under its process and, where it says which, its communicator.
func (j *joiner) line(l *Line) {
	pk := fmt.Sprintf("%s:%d", l.Host, l.PID)
	p := j.process(pk, l)
	tk := fmt.Sprintf("%s:%d", pk, l.TID)
	dk := fmt.Sprintf("%s:[%d]", pk, l.Dev)
	of := func() *member {
		if m := j.cur[tk]; m != nil {
			return m
		}
		if m := j.newest[dk]; m != nil {
			return m
		}
		if len(p.members) == 1 {
			return p.members[0]
		}
		return nil
	}
	switch l.Kind {
	case "version":
		if p.version == "" {
			p.version, p.verLine = l.F["ver"], l
		}
	case "driver":
		p.driver = l.F["drv"]
	case "env", "env_hca":
		if _, ok := p.env[l.F["var"]]; !ok {
			p.env[l.F["var"]] = l
		}
	case "init_start", "init_done":
		j.enter(l, p, pk, tk, dk)
	case "comm_end":
		if m := j.byPtr[pk+l.F["comm"]]; m != nil {
			m.end = l
		}
	case "boot_timings":
		if m := of(); m != nil {
			m.boot = l
		}
	case "init_timings":
		if m := of(); m != nil {
			m.timings = l
		}
	case "local_shape":
		if m := j.byPtr[pk+l.F["comm"]]; m != nil {
			m.shape = l
		}
	case "channels", "rings_up", "ch_p2p", "ch_shm", "ch_net":
		if m := j.cur[tk]; m != nil && m.start != nil {
			m.setup(l)
		} else {
			j.pending[tk] = append(j.pending[tk], early{l, of()})
		}
	case "coll":
		if m := j.byPtr[pk+l.F["comm"]]; m != nil {
			m.colls = append(m.colls, l)
		}
	case "ib_wc":
		if m := of(); m != nil {
			m.wc = append(m.wc, l)
		}
	}
}

// goesOn says whether a line of Init can be the next one of this member, rather than the first of a communicator that has
// the pointer of one that ended.
func (m *member) goesOn(kind string, n, rank int) bool {
	over := m.done != nil || kind == "init_start" && m.start != nil
	return !over && m.rank == rank && m.comm.n == n
}

// enter files a line in which a process enters a communicator, or has finished its setup.
func (j *joiner) enter(l *Line, p *proc, pk, tk, dk string) {
	n, rank := num(l.F["n"]), num(l.F["rank"])
	if n > mostRanks || rank >= n {
		return // a line that is damaged
	}
	ptr := pk + l.F["comm"]
	m := j.byPtr[ptr]
	if m != nil && !m.goesOn(l.Kind, n, rank) {
		m = nil // the pointer is used again
	}
	if m == nil {
		co := j.communicator(l, p, pk, n, rank)
		m = &member{comm: co, proc: p, rank: rank, dev: num(l.F["dev"]), bus: l.F["bus"]}
		if old := co.members[rank]; old == nil {
			co.members[rank] = m
		}
		p.members = append(p.members, m)
		j.byPtr[ptr] = m
	}
	if l.Kind == "init_start" {
		m.start = l
	} else {
		m.done = l
	}
	for _, e := range j.pending[tk] {
		if m.start == nil {
			m.setup(e.l)
		} else {
			e.other.setup(e.l)
		}
	}
	delete(j.pending, tk)
	j.cur[tk], j.newest[dk] = m, m
	j.newest[fmt.Sprintf("%s:[%d]", pk, m.dev)] = m
}

// communicator is the one that a line names, by id or, before 2.16, by being the k-th of its size in this process.
func (j *joiner) communicator(l *Line, p *proc, pk string, n, rank int) *comm {
	key := "id " + l.F["cid"]
	if l.F["cid"] == "" {
		sized := fmt.Sprintf("%s n%d r%d", pk, n, rank)
		k := j.sized[sized]
		j.sized[sized]++
		for slot := 0; ; slot++ {
			key = fmt.Sprintf("size %d number %d.%d", n, k, slot)
			if old := j.comms[key]; old == nil || old.members[rank] == nil || old.members[rank].proc == p {
				j.slots[n] = max(j.slots[n], slot)
				break
			}
		}
	} else if old := j.comms[key]; old != nil && old.members[rank] != nil && old.members[rank].proc != p {
		key += " again"
	}
	co := j.comms[key]
	if co == nil {
		co = &comm{key: key, id: l.F["cid"], n: n, members: map[int]*member{}}
		j.comms[key] = co
		j.commOrder = append(j.commOrder, co)
	}
	return co
}

// addresses of a host that a line tells.
func addresses(l *Line) []string {
	var out []string
	add := func(s string) {
		if a := ipOf(s); a != "" {
			out = append(out, a)
		}
	}
	switch l.Kind {
	case "bootstrap_if", "ib_using":
		add(l.F["addr"])
	case "sock_using":
		for _, w := range strings.Fields(l.F["list"]) {
			if _, rest, ok := strings.Cut(w[strings.IndexByte(w, ']')+1:], ":"); ok {
				add(rest)
			}
		}
	}
	return out
}

// ipOf takes the address from 10.0.0.1<4242> or [fe80::1]<0>.
func ipOf(s string) string {
	s, _, _ = strings.Cut(s, "<")
	s = strings.Trim(s, "[]")
	s, _, _ = strings.Cut(s, "%")
	a, err := netip.ParseAddr(s)
	if err != nil || a.IsLoopback() || a.IsUnspecified() {
		return ""
	}
	return a.Unmap().String()
}

// joinedBy returns the process that stands for all that share communicators with a process, directly or through others.
func joinedBy(comms []*comm) (root func(*proc) *proc) {
	parent := map[*proc]*proc{}
	root = func(p *proc) *proc {
		for parent[p] != nil {
			p = parent[p]
		}
		return p
	}
	for _, c := range comms {
		var first *proc
		for _, r := range c.ranks() {
			p := root(c.members[r].proc)
			if first == nil {
				first = p
			} else if p != first {
				parent[p] = first
			}
		}
	}
	return root
}

// group makes jobs: processes that share a communicator, directly or through others.
func (j *joined) group(comms []*comm, loose []*Line) {
	root := joinedBy(comms)
	byRoot := map[*proc]*job{}
	for _, p := range j.order {
		if len(p.members) == 0 {
			continue
		}
		r := root(p)
		jb := byRoot[r]
		if jb == nil {
			jb = &job{}
			byRoot[r] = jb
			j.jobs = append(j.jobs, jb)
		}
		p.job = jb
		jb.procs = append(jb.procs, p)
	}
	for _, c := range comms {
		for _, r := range c.ranks() {
			if jb := c.members[r].proc.job; jb != nil {
				jb.comms = append(jb.comms, c)
				if jb.world == nil || c.n > jb.world.n {
					jb.world = c
				}
				break
			}
		}
	}
	j.adopt()
	slices.SortStableFunc(j.jobs, func(a, b *job) int { return cmp.Compare(b.size(), a.size()) })
	j.settle(loose)
	j.name()
}

// sure are the communicators whose members are known.
func (jb *job) sure() []*comm {
	return slices.DeleteFunc(slices.Clone(jb.comms), func(c *comm) bool { return c.mixed })
}

func (jb *job) size() int {
	if jb.world == nil {
		return 0
	}
	return jb.world.n
}

// procOf is a process by host and number; without a host it must be the only one of that number.
func (j *joined) procOf(host string, pid int) *proc {
	if pid <= 0 {
		return nil
	}
	var one *proc
	for _, p := range j.order {
		if p.pid == pid && (host == "" || p.host == host) {
			if one != nil {
				return nil
			}
			one = p
		}
	}
	return one
}

// rankOf is the rank of a line in its job, or -1.
func (j *joined) rankOf(l *Line) int {
	p := j.procs[fmt.Sprintf("%s:%d", l.Host, l.PID)]
	if p == nil {
		return l.Rank
	}
	var best *member
	for _, m := range p.members {
		if l.Dev >= 0 && m.dev >= 0 && m.dev != l.Dev && len(p.members) > 1 {
			continue
		}
		if best == nil || m.comm.n > best.comm.n {
			best = m
		}
	}
	if best == nil {
		return l.Rank
	}
	return best.rank
}

// hostOf is the host of a peer, which NCCL names by address or by name, or "".
func (j *joined) hostOf(peer string) string {
	if a := ipOf(peer); a != "" {
		return j.addr[a]
	}
	name, _, named := strings.Cut(peer, "<")
	if name, _, _ = strings.Cut(name, "."); named && name != "" && !strings.ContainsAny(name, "[]:%") &&
		strings.ContainsAny(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz") {
		return name
	}
	return ""
}

// each calls f for every line of a job of the given kinds.
func (jb *job) each(f func(p *proc, l *Line), kinds ...string) {
	for _, p := range jb.procs {
		for _, l := range p.lines {
			if slices.Contains(kinds, l.Kind) {
				f(p, l)
			}
		}
	}
	for _, l := range jb.loose {
		if slices.Contains(kinds, l.Kind) {
			f(nil, l)
		}
	}
}

func (jb *job) some(kinds ...string) bool {
	found := false
	jb.each(func(*proc, *Line) { found = true }, kinds...)
	return found
}

// version of the job, the oldest that is known; nil if unknown.
func (jb *job) version() (v [3]int, ok bool) {
	jb.each(func(_ *proc, l *Line) {
		if x, good := parseVersion(l.F["ver"]); good && (!ok || slices.Compare(x[:], v[:]) < 0) {
			v, ok = x, true
		}
	}, "version")
	return v, ok
}

// parseVersion reads two or three numbers, as in 2.27.7. A suffix makes it no version.
func parseVersion(s string) (v [3]int, ok bool) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) < 2 {
		return v, false
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

func atLeast(v [3]int, w ...int) bool {
	for i, x := range w {
		if v[i] != x {
			return v[i] > x
		}
	}
	return true
}
