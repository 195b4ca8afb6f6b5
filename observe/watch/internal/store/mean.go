package store

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"

	"github.com/weft-fabric/weft/observe/watch"
)

// Bucket is the time that a mean covers, in seconds.
const Bucket = 300

// Means adds up the series of hosts.
type Means struct{ hosts map[string]*sums }

type sums struct {
	schema       string
	begin        float64
	n            int
	sum          []float32 // of differences to base, so that counters keep their digits
	least, great []float32
	base         []float64
}

// NewMeans begins without sums.
func NewMeans() *Means { return &Means{hosts: map[string]*sums{}} }

// fits says whether the sums are of the same series as the counters.
func (s *sums) fits(c *watch.Counters) bool {
	return s.schema == c.Schema && len(s.base) == len(c.Values)
}

// Add takes the series of a host. Where a bucket is over it gives its record.
func (m *Means) Add(now float64, host string, c *watch.Counters) []byte {
	s := m.hosts[host]
	var out []byte
	other := s != nil && !s.fits(c)
	if s != nil && (other || now-s.begin >= Bucket || now < s.begin) {
		out = s.record(host)
		if other {
			s = nil
		} else {
			s.n = 0
		}
	}
	if s == nil {
		k := len(c.Values)
		s = &sums{schema: c.Schema, sum: make([]float32, k), least: make([]float32, k), great: make([]float32, k), base: make([]float64, k)}
		m.hosts[host] = s
	}
	if s.n == 0 {
		s.begin = now - math.Mod(now, Bucket)
		copy(s.base, c.Values)
		clear(s.sum)
		clear(s.least)
		clear(s.great)
	}
	for i, x := range c.Values {
		d := float32(x - s.base[i])
		s.sum[i] += d
		s.least[i], s.great[i] = min(s.least[i], d), max(s.great[i], d)
	}
	s.n++
	return out
}

// Rest gives the records of all buckets that are not over, when the server ends.
func (m *Means) Rest() (list [][]byte) {
	for h, s := range m.hosts {
		if s.n > 0 {
			list = append(list, s.record(h))
		}
	}
	slices.SortFunc(list, func(a, b []byte) int { return slices.Compare(a, b) })
	return list
}

type meanHead struct {
	Host   string `json:"host"`
	Schema string `json:"schema"`
}

// record: time, host and schema as JSON, then base, and mean, least and greatest
// difference where there is one.
func (s *sums) record(host string) []byte {
	head, _ := json.Marshal(meanHead{host, s.schema})
	b := binary.LittleEndian.AppendUint64(nil, math.Float64bits(s.begin))
	b = binary.AppendUvarint(b, uint64(len(head)))
	b = append(b, head...)
	b = binary.AppendUvarint(b, uint64(len(s.base)))
	same := uint64(0)
	for i := range s.base {
		if s.base[i] == 0 && s.least[i] == 0 && s.great[i] == 0 {
			same++
			continue
		}
		b = binary.AppendUvarint(b, same)
		same = 0
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.base[i]))
		if s.least[i] == s.great[i] {
			b = append(b, 0)
			continue
		}
		b = append(b, 1)
		for _, x := range []float32{s.sum[i] / float32(s.n), s.least[i], s.great[i]} {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	}
	return b
}

// Point is a series over one bucket, or one report.
type Point struct {
	At    float64 `json:"at"`
	Mean  float64 `json:"mean"`
	Least float64 `json:"least"`
	Great float64 `json:"great"`
}

// MeanOf reads a series out of the record of a bucket; false if the record is of another
// host or has no such series.
func MeanOf(b []byte, host, name string, schemas map[string][]string) (p Point, ok bool) {
	if len(b) < 9 {
		return p, false
	}
	p.At = math.Float64frombits(binary.LittleEndian.Uint64(b))
	b = b[8:]
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return p, false
	}
	var head meanHead
	if json.Unmarshal(b[k:k+int(n)], &head) != nil || head.Host != host {
		return p, false
	}
	at := slices.Index(schemas[head.Schema], name)
	b = b[k+int(n):]
	count, k := binary.Uvarint(b)
	if k <= 0 || at < 0 || uint64(at) >= count {
		return p, false
	}
	b = b[k:]
	for i := uint64(0); len(b) > 0; i++ {
		skip, k := binary.Uvarint(b)
		if k <= 0 || skip > count || len(b) < k+9 {
			return p, false
		}
		if i += skip; i > uint64(at) {
			return p, true // nought
		}
		base := math.Float64frombits(binary.LittleEndian.Uint64(b[k:]))
		how := b[k+8]
		b = b[k+9:]
		var d [3]float64
		if how != 0 {
			if len(b) < 12 {
				return p, false
			}
			for j := range d {
				d[j] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*j:])))
			}
			b = b[12:]
		}
		if i == uint64(at) {
			p.Mean, p.Least, p.Great = base+d[0], base+d[1], base+d[2]
			return p, true
		}
	}
	return p, true
}
