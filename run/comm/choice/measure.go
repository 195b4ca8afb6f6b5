package choice

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/turns"
)

const (
	spend   = 5 * time.Millisecond   // on each of four parts, and one round more; half of it on those that follow
	glimpse = 500 * time.Microsecond // on messages that tell whether what was measured before still holds
	enough  = 100 * time.Millisecond // on all; from then on two rounds a part are done
	most    = 200                    // rounds of a part
	warm    = 1                      // rounds that do not count
	series  = 2                      // in which messages are measured, six parts inside a host and six between hosts
	small   = 8                      // bytes of a small message
	chain   = 8                      // exchanges one after another, each begun when the one before is done, so that who begins early does not matter; fewer from 16 ranks a host on
	burst   = 6                      // messages sent without waiting: fewer than any transport has room for
	pass    = 16 << 10               // bytes of the smallest of three passes over memory
	batch   = 3 << 20                // bytes of traffic that are timed at once, where a pass is shorter
	perPass = 3                      // bytes of traffic a byte of dst = dst + src: two loads and a store
	room    = 32 << 20               // bytes that all ranks of a host may use together for passes: new pages take 0.4 ms a MiB

	leastPost = 0.02 // us: what a message takes of a core at least, some 60 cycles
)

// largeFor is the size of large messages where a host has that number of ranks, which
// all send at once: 256 KiB, and less from 8 ranks on.
func largeFor(ranks int) int { return max(256<<10/max(ranks/8, 1)&^63, 16<<10) }

// Measure finds out what the ranks of a port cost one another. All of them must
// call it at once, on a port of its own: it carries out one call, the given one.
// hosts[r] is the host of rank r. Everything is measured by all ranks at the same
// time, as collectives use it, for 30 to 130 ms in all; what each of them found
// is gathered, and all return the same: the median rank's figures. The links'
// Kind is the caller's to fill in.
func Measure(ctx context.Context, port transport.Port, call transport.Call, rank int, hosts []int,
	gather transport.Gather) (cost.Links, error) {
	f, err := newProbe(ctx, port, call, rank, hosts, 1).measure(1, gather)
	if err != nil {
		return cost.Links{}, err
	}
	return f.links(hosts)
}

// measure measures everything. shared is how many hosts share a machine's cores.
func (p *probe) measure(shared int, gather transport.Gather) (figures, error) {
	f := findings{Cores: cores(), When: time.Now().UTC().Truncate(time.Second)}
	p.start()
	if err := p.run(&f); err != nil {
		return figures{}, fmt.Errorf("measuring links: %w", err)
	}
	f.Took = float64(time.Since(p.begin)) / 1e3
	mine, err := json.Marshal(&f)
	if err != nil {
		return figures{}, fmt.Errorf("measuring links: %w", err)
	}
	all, err := gather(p.ctx, mine)
	if err != nil {
		return figures{}, fmt.Errorf("gathering measured links: %w", err)
	}
	figures, err := combine(all, p.hosts, shared)
	figures.Rails = p.rails
	return figures, err
}

// small is how long an exchange of two small messages takes the median rank, between hosts where there are several, as exchange
// finds it in more time. All ranks return the same.
func (p *probe) small(gather transport.Gather) (float64, error) {
	if err := p.meet(); err != nil {
		return 0, fmt.Errorf("looking at links: %w", err)
	}
	to, from := p.around()
	if len(p.mates) < p.size {
		to, from = p.away()
	}
	took, err := p.round(to, from, 1, small, glimpse, 0)
	if err != nil {
		return 0, fmt.Errorf("looking at links: %w", err)
	}
	if len(to) == 0 {
		took = 0
	}
	all, err := gather(p.ctx, binary.LittleEndian.AppendUint64(nil, math.Float64bits(took)))
	if err != nil {
		return 0, fmt.Errorf("looking at links: %w", err)
	}
	times := make([]float64, len(all))
	for r, b := range all {
		if len(b) != 8 {
			return 0, fmt.Errorf("looking at links: %d bytes of rank %d", len(b), r)
		}
		times[r] = math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	return middle(times, func(t *float64) float64 { return *t }), nil
}

// cores are those that the processes of this host can have: what the system allows
// them, quotas included. How many of them one process is to use says nothing about
// that, if somebody chose it.
func cores() int {
	if os.Getenv("GOMAXPROCS") != "" {
		return runtime.NumCPU()
	}
	return runtime.GOMAXPROCS(0)
}

// findings are what a rank measured: times in us, and zero for what it took no
// part in.
type findings struct {
	Cores int
	When  time.Time
	Took  float64 // of all this
	Used  float64 // of a core, for the passes over memory
	Wall  float64 // that passed until all ranks were done with them

	// Threads of this process while messages were measured: how long they ran, and how long they waited for a core.
	Ran, Waited float64

	Paces []cost.Pace
	Sync  float64
	Near  exchange
	Far   exchange
}

// exchange is how long it takes to send and to receive a message, in us.
type exchange struct {
	Small float64 `json:"small_us"` // a small one
	More  float64 `json:"more_us"`  // another one at the same time, of and to another rank if there is one
	Large float64 `json:"large_us"` // a large one
}

// probe is a measurement under way.
type probe struct {
	ctx   context.Context
	port  transport.Port
	rank  int
	size  int
	mates []int // ranks of the own host, in order
	hosts []int
	begin time.Time
	large int
	rails int    // over which messages between hosts are spread
	used  int64  // ns of a core, while passing over memory
	dst   []byte // of the passes, from src
	src   []byte
	bytes []byte // to send
	space []byte // to receive
}

// newProbe begins the call that all that is measured belongs to.
func newProbe(ctx context.Context, port transport.Port, call transport.Call, rank int, hosts []int, rails int) *probe {
	p := &probe{ctx: ctx, port: port, rank: rank, size: len(hosts), hosts: hosts, rails: max(rails, 1), begin: time.Now()}
	for r, h := range hosts {
		if h == hosts[rank] {
			p.mates = append(p.mates, r)
		}
	}
	_, widest := width(hosts)
	p.large = largeFor(widest)
	p.bytes, p.space = make([]byte, small), make([]byte, burst*small)
	port.Begin(call, func() error { return context.Cause(ctx) })
	return p
}

// start makes the memory that is passed over. New memory may wait for the collector, so that it is made before anything is timed.
func (p *probe) start() {
	p.begin = time.Now()
	p.bytes, p.space = make([]byte, p.large*p.rails), make([]byte, p.large*p.rails)
	p.dst, p.src = make([]byte, p.pass(256*pass)), make([]byte, p.pass(256*pass))
}

// pass is the length of a pass over memory where that many bytes are wanted.
func (p *probe) pass(bytes int) int { return min(bytes, max(room/2/len(p.mates)&^4095, pass)) }

// width is the number of ranks of the hosts that have fewest and most.
func width(hosts []int) (least, most int) {
	on := map[int]int{}
	for _, h := range hosts {
		on[h]++
	}
	least = len(hosts)
	for _, n := range on {
		least, most = min(least, n), max(most, n)
	}
	return least, most
}

// run measures in the order of what depends on what: memory alone, then how long meeting takes, then messages, from
// which that time is subtracted. All ranks must call it, in the same order.
func (p *probe) run(f *findings) error {
	if err := p.meet(); err != nil { // from here on all ranks are there
		return err
	}
	begin := time.Now()
	for _, bytes := range []int{pass, 16 * pass, 256 * pass} {
		pace, err := p.memory(p.pass(bytes))
		if err != nil {
			return err
		}
		if k := len(f.Paces) - 1; k >= 0 && f.Paces[k].Traffic >= pace.Traffic {
			break // many ranks: the room is used up
		}
		f.Paces = append(f.Paces, pace)
	}
	f.Used, f.Wall = float64(p.used)/1e3, float64(time.Since(begin))/1e3
	if p.size == 1 {
		return nil
	}
	had := threads()
	defer func() {
		has := threads()
		f.Ran, f.Waited = float64(has.Ran-had.Ran)/1e3, float64(has.Waited-had.Waited)/1e3
	}()
	idle, err := p.timed(spend, func() error { return nil })
	if err != nil {
		return err
	}
	f.Sync = idle.met
	if f.Near, err = p.exchange(1, f.Sync, p.around); err != nil {
		return err
	}
	if len(p.mates) < p.size {
		f.Far, err = p.exchange(p.rails, f.Sync, p.away)
	}
	return err
}

// around lists the next ranks of the host to send to, and the ones before to
// receive from.
func (p *probe) around() (to, from []int) {
	at, n := slices.Index(p.mates, p.rank), len(p.mates)
	for far := 1; far < min(n, burst+1); far++ {
		to, from = append(to, p.mates[(at+far)%n]), append(from, p.mates[(at-far+n)%n])
	}
	return to, from
}

// away pairs the ranks of every host with those of the next one, as far as the
// host with the fewest goes; nobody for ranks beyond that and where there is one
// host.
func (p *probe) away() (to, from []int) {
	var on [][]int
	number := map[int]int{}
	for r, h := range p.hosts {
		if _, seen := number[h]; !seen {
			number[h] = len(on)
			on = append(on, nil)
		}
		on[number[h]] = append(on[number[h]], r)
	}
	at := slices.Index(p.mates, p.rank)
	if least, _ := width(p.hosts); len(on) == 1 || at >= least {
		return nil, nil
	}
	h := number[p.hosts[p.rank]]
	return []int{on[(h+1)%len(on)][at]}, []int{on[(h+len(on)-1)%len(on)][at]}
}

// meet ends on no rank before it began on all.
func (p *probe) meet() error {
	_, err := p.agree(false)
	return err
}

// agree meets, and tells every rank whether any of them says so: after k rounds
// a rank has heard of the 2^k ranks up to itself.
func (p *probe) agree(so bool) (bool, error) {
	var word, heard [small]byte
	for far := 1; far < p.size; far *= 2 {
		binary.LittleEndian.PutUint64(word[:], 0)
		if so {
			word[0] = 1
		}
		from := (p.rank - far + p.size) % p.size
		p.port.Expect(from, 0, heard[:])
		if err := p.port.Send((p.rank+far)%p.size, 0, word[:]); err != nil {
			return false, err
		}
		if err := p.port.Recv(from, 0, heard[:]); err != nil {
			return false, err
		}
		so = so || heard[0] == 1
	}
	return so, nil
}

// times are what rounds took, in us.
type times struct {
	took float64 // this rank
	met  float64 // the meeting of all ranks after it
	all  float64 // both
}

// timed gives the time that a round takes. All ranks do the same number of rounds, and all
// begin one when all have done the one before. What else runs on a host only
// makes them longer, so the shortest of each counts.
func (p *probe) timed(spend time.Duration, round func() error) (times, error) {
	least := times{took: math.Inf(1), met: math.Inf(1), all: math.Inf(1)}
	begin := time.Now()
	for i := 0; ; i++ {
		start := time.Now()
		if err := round(); err != nil {
			return times{}, err
		}
		done := time.Now()
		stop, err := p.agree(i >= most || i > warm && done.Sub(begin) > spend || i == warm && done.Sub(p.begin) > enough)
		if err != nil {
			return times{}, err
		}
		if now := time.Now(); i >= warm {
			least.took = min(least.took, float64(done.Sub(start))/1e3)
			least.met = min(least.met, float64(now.Sub(done))/1e3)
			least.all = min(least.all, float64(now.Sub(start))/1e3)
		}
		if stop {
			return least, nil
		}
		if err := context.Cause(p.ctx); err != nil {
			return times{}, err
		}
	}
}

// exchange measures sending to some ranks and receiving from others, over a number of rails: a large message
// has a piece for each. Ranks with nobody to exchange with only meet, which takes sync.
//
// Ranks of a host share its way out, and not by halves: one has more of it in one round, another in the next, and the least time of each
// would be of more than there is. So a large message takes as long as all of them do.
//
// Large messages go from and to the whole of the memory that was passed over before: those of collectives seldom are in a cache.
func (p *probe) exchange(rails int, sync float64, with func() (to, from []int)) (exchange, error) {
	to, from := with()
	messages := burst
	if len(to) > 1 {
		messages = len(to)
	}
	// What else runs does so for some ms at a time: all is measured twice, and the shorter time counts.
	var least [3]float64
	for turn := range series {
		for i, m := range [3]struct{ messages, bytes int }{{1, small}, {messages, small}, {1, p.large * rails}} {
			t, err := p.round(to, from, m.messages, m.bytes, spend/series, sync)
			if err != nil {
				return exchange{}, err
			}
			if turn > 0 {
				t = min(t, least[i])
			}
			least[i] = t
		}
	}
	if len(to) == 0 {
		return exchange{}, nil
	}
	one, several, large := least[0], least[1], least[2]
	return exchange{Small: one, More: max(several-one, 0) / float64(messages-1), Large: large}, nil
}

// round gives the time of exchanging messages at once, with one rank after another, many times over.
func (p *probe) round(to, from []int, messages, bytes int, spend time.Duration, sync float64) (float64, error) {
	rails := 1
	if len(to) > 0 && !slices.Contains(p.mates, to[0]) {
		rails = p.rails
	}
	_, most := width(p.hosts)
	chain := max(min(chain, max(8*chain/most, 2))/rails, 2)
	at := 0
	once := func() error {
		space, data := p.space, p.bytes
		if bytes > small && len(p.src) >= bytes {
			if at += bytes; at+bytes > len(p.src) {
				at = 0
			}
			space, data = p.dst[at:], p.src[at:]
		}
		return p.swap(to, from, messages, data[:bytes], space)
	}
	t, err := p.timed(spend, func() error {
		for range chain {
			if len(to) == 0 {
				return nil
			}
			if err := once(); err != nil {
				return err
			}
		}
		return nil
	})
	if bytes > small && len(to) == 1 && len(p.mates) > 1 && !slices.Contains(p.mates, to[0]) {
		t.took = max(t.took, t.all-sync)
	}
	return t.took / float64(chain), err
}

// swap sends messages and receives as many of that length, each small bytes behind the one before.
func (p *probe) swap(to, from []int, messages int, data, space []byte) error {
	for i := range messages {
		p.port.Expect(from[i%len(from)], 0, space[i*small:][:len(data)])
	}
	for i := range messages {
		if err := p.port.Send(to[i%len(to)], 0, data); err != nil {
			return err
		}
	}
	for i := range messages {
		if err := p.port.Recv(from[i%len(from)], 0, space[i*small:][:len(data)]); err != nil {
			return err
		}
	}
	return nil
}

// threads adds up what the threads of this process have had of the cores; nothing where the system does not say.
func threads() (sum turns.Turn) {
	for _, t := range turns.Of("/proc/self") {
		sum.Ran, sum.Waited = sum.Ran+t.Ran, sum.Waited+t.Waited
	}
	return sum
}

// memory measures what a byte of traffic takes of a core, while all ranks do the
// same to two buffers of that size each.
func (p *probe) memory(bytes int) (cost.Pace, error) {
	dst, src := p.dst[:bytes], p.src[:bytes]
	repeat := max(batch/(perPass*bytes), 1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var used []float64
	// Ranks that share a core share the time, too.
	n := cores()
	budget := int64(spend) * int64(n) / int64(max(len(p.mates), n))
	begin := cpuTime()
	for i := 0; ; i++ {
		start := cpuTime()
		for range repeat {
			reduce.Apply(reduce.Float32, reduce.Sum, dst, dst, src)
		}
		now := cpuTime()
		if i > 0 { // the first pass finds new pages
			used = append(used, float64(now-start)/1e3)
		}
		if i > 0 && (now-begin > budget || i > most) {
			break
		}
	}
	p.used += cpuTime() - begin
	traffic := float64(perPass * bytes)
	pace := cost.Pace{Traffic: traffic * float64(len(p.mates)), Byte: quantile(used, 10) / float64(repeat) / traffic}
	return pace, p.meet() // the next size begins on all ranks at once
}

// median is the middle of some numbers, of an even count the lower; zero of none.
func median(list []float64) float64 { return quantile(list, 2) }

// quantile is the number below which lies one part of parts.
func quantile(list []float64, parts int) float64 {
	if len(list) == 0 {
		return 0
	}
	list = slices.Sorted(slices.Values(list))
	return list[(len(list)-1)/parts]
}
