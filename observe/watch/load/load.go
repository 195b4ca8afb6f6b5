// Package load makes the reports of a cluster that does not exist, for measuring a server
// of weft watch and for showing its page: hosts with eight ports, and jobs with ranks
// whose collectives take their time. Everything follows from a seed and the time.
package load

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/weft-fabric/weft/observe/internal/health"
	"github.com/weft-fabric/weft/observe/watch"
)

// World is the cluster.
type World struct {
	Hosts  int
	Series int     // of a host
	Ranks  bool    // every host has eight ranks of a job; 16 hosts are a job
	Every  float64 // seconds between reports of counters
	Seed   uint64
	Begin  float64 // when it began, seconds since 1970
	// Faults: a host whose third port lost its link, a rank that is late by a share of the
	// time between operations, and a host whose sixth port runs at half its rate. -1 for none.
	Down, Late, Slow int

	names []string
}

// New makes a healthy world.
func New(hosts, series int, every float64, seed uint64, begin float64) *World {
	w := &World{Hosts: hosts, Series: series, Every: every, Seed: seed, Begin: begin, Down: -1, Late: -1, Slow: -1}
	for p := range 8 {
		for _, m := range []string{"port_data_transmitted_bytes_total", "port_data_received_bytes_total", "port_packets_transmitted_total",
			"port_packets_received_total", "port_transmit_wait_total", "symbol_error_total", "link_downed_total", "rate_bytes_per_second"} {
			w.names = append(w.names, fmt.Sprintf(`node_infiniband_%s{device="mlx5_%d",port="1"}`, m, p))
		}
	}
	for i := len(w.names); i < series; i++ {
		w.names = append(w.names, fmt.Sprintf(`weft_load_series_total{n="%d"}`, i))
	}
	w.names = w.names[:series]
	return w
}

// Host is the name of a host.
func (w *World) Host(i int) string { return fmt.Sprintf("n%d", i) }

// rate is the bytes a second of a port: ports of a rail of one job carry the same.
func (w *World) rate(host, port int) float64 {
	job := host / 16
	base := 9e9 * (2 + math.Sin(float64(job)*1.7)) / 2
	return base * (1 + 0.02*math.Sin(float64(host*8+port)))
}

// fill gives values to the series that are of no port. A third of them move.
func fill(values []float64, t float64) {
	for k := 64; k < len(values); k++ {
		if k%3 == 0 {
			values[k] = math.Floor(t * float64(k))
		} else {
			values[k] = float64(k)
		}
	}
}

// Counters gives the report of a host's counters at a time. With names, the names of the
// series are in it.
func (w *World) Counters(i int, at float64, names bool) *watch.Report {
	t := at - w.Begin
	c := &watch.Counters{Schema: fmt.Sprintf("load%d", w.Series), Values: make([]float64, w.Series), Checks: 8 * 24,
		Facts: map[string]string{"kernel": "6.8.0", "nvidia driver": "570.86", "firmware of mlx5_0": "28.43.1014"}}
	if names {
		c.Names = w.names
	}
	for p := range 8 {
		rate := w.rate(i, p)
		x := watch.Port{Device: fmt.Sprintf("mlx5_%d", p), Port: "1", Active: true, Gbps: 400, Tx: math.Floor(rate * t),
			Rx: math.Floor(rate * t * 0.99), Wait: math.Floor(t * 1000)}
		if i == w.Slow && p == 5 {
			x.Gbps = 200
		}
		if i == w.Down && p == 2 {
			c.States = append(c.States, health.Status{Key: health.Key{Device: x.Device, Port: "1", Metric: "link_downed"}, State: health.Bad,
				Since: at, Value: 3, Why: "a link was lost", Fix: "cable or port; drain"})
		}
		c.Ports = append(c.Ports, x)
		for k, v := range []float64{x.Tx, x.Rx, math.Floor(x.Tx / 4096), math.Floor(x.Rx / 4096), x.Wait, 0, 0, x.Gbps / 8 * 1e9} {
			if n := p*8 + k; n < w.Series {
				c.Values[n] = v
			}
		}
	}
	fill(c.Values, t)
	return &watch.Report{Host: w.Host(i), Boot: "boot", At: at, Every: w.Every, Counters: c}
}

// step is the time between operations of a job, in seconds.
const step = 0.25

// AddRanks adds the ranks of a host to a report. after is when the host last told.
func (w *World) AddRanks(r *watch.Report, i int, after, at float64) {
	r.HasRanks = true
	job := i / 16
	size := 8 * min(16, w.Hosts-16*job)
	first, last := int64((after-w.Begin)/step), int64((at-w.Begin)/step)
	for g := range 8 {
		n := i%16*8 + g
		x := watch.Rank{Job: fmt.Sprintf("llama-%d", job), Rank: n, Size: size, PID: 4000 + n, GPU: fmt.Sprint(g), State: "R", CPU: at - w.Begin,
			Memory: int64(40+n%5) << 30}
		grp := watch.Group{Name: "world", Done: last}
		for s := max(first, last-16) + 1; s <= last; s++ {
			// All draw the same numbers for an operation, so that they know who is last.
			rng := rand.New(rand.NewPCG(w.Seed+uint64(job), uint64(s)))
			end, mine := 0.0, 0.0
			for k := range size {
				arrive := math.Abs(rng.NormFloat64()) * 0.002
				if w.Late == 16*8*job+k {
					arrive += 0.04
				}
				end = max(end, arrive)
				if k == n {
					mine = arrive
				}
			}
			bytes := int64(256 << 20)
			took := 0.0016 + end - mine
			if s%4 != 0 {
				bytes, took = 64<<20, 0.0009+end-mine
			}
			grp.Ops = append(grp.Ops, watch.Op{Seq: s, Name: "all-reduce", Bytes: bytes, Took: took})
		}
		x.Groups = []watch.Group{grp}
		r.Ranks = append(r.Ranks, x)
	}
}
