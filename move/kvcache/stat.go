package kvcache

import (
	"io"
	"reflect"

	"github.com/weft-fabric/weft/move/kv"

	"github.com/weft-fabric/weft/model/metrics"
)

// Counters of a cache since it started.
type Counters struct {
	Asked      int64 `json:"asked"` // blocks
	Memory     int64 `json:"memory_hits"`
	Disk       int64 `json:"disk_hits"`
	Store      int64 `json:"store_hits"`
	Peer       int64 `json:"peer_hits"`
	Missed     int64 `json:"missed"`
	Stored     int64 `json:"stored"`
	Known      int64 `json:"stored_again"` // blocks that were there already
	Refused    int64 `json:"refused"`      // no room
	Evicted    int64 `json:"evicted_memory"`
	EvictedOut int64 `json:"evicted_disk"`
	Behind     int64 `json:"not_written"` // too many waited for disk or store
	Written    int64 `json:"written_disk"`
	Packed     int64 `json:"packs_written"`
	Raced      int64 `json:"packs_there"` // another cache had written it
	Damaged    int64 `json:"damaged"`     // checksums that did not fit
	Failed     int64 `json:"failed"`      // reads and writes of disk, store and peers
	In         int64 `json:"bytes_in"`
	Out        int64 `json:"bytes_out"`
	Moved      int64 `json:"bytes_by_transfers"` // of both
}

// Stat is how a cache stands.
type Stat struct {
	Name     string       `json:"name"`
	Uptime   float64      `json:"uptime_s"`
	Block    int64        `json:"block_bytes"`
	Memory   int64        `json:"memory_bytes"`
	Slab     int64        `json:"slab_bytes"`
	Store    string       `json:"store,omitempty"`
	Policy   kv.Policy    `json:"policy"`
	Tenants  []TenantStat `json:"tenants"`
	Peers    []PeerStat   `json:"peers"`
	Waiting  int          `json:"waiting"` // for disk and store
	Broken   string       `json:"broken,omitempty"`
	Chain    string       `json:"chain,omitempty"`
	Counters Counters     `json:"counters"`
}

// TenantStat is what a tenant has.
type TenantStat struct {
	Name   string `json:"name"`
	Quota  int64  `json:"quota_bytes"`
	Memory int    `json:"memory_blocks"`
	Disk   int    `json:"disk_blocks"`
	InUse  int    `json:"in_use"` // blocks that are read or written at this moment
	Room   int    `json:"memory_room"`
}

// Stat tells how the cache stands.
func (c *Cache) Stat() Stat {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stat{Name: c.o.Name, Uptime: c.now(), Block: c.o.Block, Memory: c.o.Memory, Policy: c.o.Policy, Waiting: len(c.queue),
		Tenants: []TenantStat{}, Peers: []PeerStat{}}
	if c.slab != nil {
		s.Slab = c.slab.size()
	}
	if c.o.Store != nil {
		s.Store = c.o.Store.Path("")
	}
	if c.broken != nil {
		s.Broken = c.broken.Error()
	}
	tenants := c.o.Tenants
	if len(tenants) == 0 {
		tenants = []Tenant{{Name: "default"}}
	}
	for _, x := range tenants {
		t := c.tenants[x.Name]
		one := TenantStat{Name: t.Name, Quota: t.Quota, Memory: t.memory.Len(), Room: t.memory.Room(), InUse: t.memory.Locked()}
		if t.disk != nil {
			one.Disk = t.disk.Len()
		}
		s.Tenants = append(s.Tenants, one)
		s.Counters.add(&t.count)
	}
	for _, p := range c.peers {
		s.Peers = append(s.Peers, p.stat())
	}
	return s
}

// Of is how the cache stands as one of its tenants sees it: nothing of the others, or of what they share.
func (c *Cache) Of(who string) Stat {
	all := c.Stat()
	s := Stat{Name: all.Name, Uptime: all.Uptime, Block: all.Block, Policy: all.Policy, Tenants: []TenantStat{}, Peers: []PeerStat{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range all.Tenants {
		if t.Name == who {
			s.Memory, s.Counters = t.Quota, c.tenants[who].count
			s.Tenants = append(s.Tenants, t)
		}
	}
	return s
}

// add adds what another has counted.
func (c *Counters) add(o *Counters) {
	to, from := reflect.ValueOf(c).Elem(), reflect.ValueOf(o).Elem()
	for i := range to.NumField() {
		to.Field(i).SetInt(to.Field(i).Int() + from.Field(i).Int())
	}
}

// Metrics writes the counters for Prometheus.
func (s Stat) Metrics(w io.Writer) error {
	var m metrics.Page
	for _, x := range []struct {
		where string
		n     int64
	}{{"memory", s.Counters.Memory}, {"disk", s.Counters.Disk}, {"store", s.Counters.Store}, {"peer", s.Counters.Peer},
		{"nowhere", s.Counters.Missed}} {
		m.Add("weft_kv_lookups_total", metrics.Counter, "Blocks requested, by where they were found: memory, disk, store, peer, nowhere.",
			float64(x.n), "found", x.where)
	}
	for _, x := range []struct {
		name, help string
		n          int64
	}{
		{"stored_total", "Blocks stored.", s.Counters.Stored},
		{"stored_again_total", "Blocks stored though they were already there.", s.Counters.Known},
		{"refused_total", "Blocks rejected because all the tenant's blocks were in use.", s.Counters.Refused},
		{"evicted_total", "Blocks evicted from memory.", s.Counters.Evicted},
		{"evicted_disk_total", "Blocks evicted from disk.", s.Counters.EvictedOut},
		{"not_written_total", "Blocks not written to disk or store because --dirty was reached.", s.Counters.Behind},
		{"written_disk_total", "Blocks written to the disk.", s.Counters.Written},
		{"packs_written_total", "Packs written to the store.", s.Counters.Packed},
		{"packs_there_total", "Packs that another cache had already written.", s.Counters.Raced},
		{"damaged_total", "Blocks dropped for a wrong checksum.", s.Counters.Damaged},
		{"failed_total", "Failed reads and writes of disk, store and peers.", s.Counters.Failed},
		{"bytes_in_total", "Bytes stored.", s.Counters.In}, {"bytes_out_total", "Bytes served.", s.Counters.Out},
		{"moved_bytes_total", "Bytes stored and served that went by transfers.", s.Counters.Moved},
	} {
		m.Add("weft_kv_"+x.name, metrics.Counter, x.help, float64(x.n))
	}
	for _, t := range s.Tenants {
		m.Add("weft_kv_blocks", metrics.Gauge, "Blocks by tenant and tier.", float64(t.Memory), "tenant", t.Name, "tier", "memory")
		m.Add("weft_kv_blocks", metrics.Gauge, "Blocks by tenant and tier.", float64(t.Disk), "tenant", t.Name, "tier", "disk")
		m.Add("weft_kv_quota_bytes", metrics.Gauge, "A tenant's memory.", float64(t.Quota), "tenant", t.Name)
	}
	for _, p := range s.Peers {
		m.Add("weft_kv_peer_blocks", metrics.Gauge, "Blocks that a peer reported.", float64(p.Blocks), "peer", p.Address)
		m.Add("weft_kv_peer_up", metrics.Gauge, "1 if the peer answers.", one(p.Error == "" && p.Heard >= 0), "peer", p.Address)
	}
	m.Add("weft_kv_waiting", metrics.Gauge, "Blocks and packs waiting for disk or store.", float64(s.Waiting))
	m.Add("weft_kv_disk_broken", metrics.Gauge, "1 if the disk tier is off after an error.", one(s.Broken != ""))
	return m.Write(w)
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
