package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"

	"github.com/weft-fabric/weft/observe/watch"
)

// Reports are coded in the order in which they are stored. What a host's series changed
// since its last report in the same file is told, and everything in its first:
//
//	kind  time  host  JSON of the rest  series: (unchanged, how, change)...
//
// A series that is a whole number changes by a whole number; others are told again.

// Coder turns reports into records, one after another.
type Coder struct {
	last map[string]*vector
	buf  []byte
}

type vector struct {
	schema string
	values []float64
}

// NewCoder begins a row of records: the first of each host is told whole.
func NewCoder() *Coder { return &Coder{last: map[string]*vector{}} }

// Report codes a report that arrived at a time. Names of series are not in it: see Names.
// The record is good until the next call.
func (c *Coder) Report(now float64, r *watch.Report) ([]byte, error) {
	rest := *r
	var values []float64
	whole := false
	v := c.last[r.Host]
	if k := r.Counters; k != nil {
		values = k.Values
		copied := *k
		copied.Values, copied.Names = nil, nil
		if v == nil || v.schema != k.Schema || len(v.values) != len(values) {
			whole = true
			v = &vector{schema: k.Schema, values: make([]float64, len(values))}
			c.last[r.Host] = v
		}
		rest.Counters = &copied
	}
	text, err := json.Marshal(&rest)
	if err != nil {
		return nil, err
	}
	b := append(c.buf[:0], 1)
	if whole {
		b[0] = 2
	}
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(now))
	b = binary.AppendUvarint(b, uint64(len(text)))
	b = append(b, text...)
	b = binary.AppendUvarint(b, uint64(len(values)))
	same := uint64(0)
	for i, x := range values {
		was := v.values[i]
		if x == was || x != x && was != was {
			same++
			continue
		}
		b = binary.AppendUvarint(b, same)
		same = 0
		if d := x - was; x == math.Trunc(x) && was == math.Trunc(was) && math.Abs(d) < 1<<53 && was+d == x {
			b = append(b, 0)
			b = binary.AppendVarint(b, int64(d))
		} else {
			b = append(b, 1)
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
		v.values[i] = x
	}
	c.buf = b
	return b, nil
}

// Decoder turns records back into reports. Records before the first whole one of a host
// have no series.
type Decoder struct{ last map[string]*vector }

// NewDecoder begins with the first record of a file, or in the middle.
func NewDecoder() *Decoder { return &Decoder{last: map[string]*vector{}} }

type schema struct {
	Schema string   `json:"schema"`
	Names  []string `json:"names"`
}

// NamesRecord is the record (of kind Name) of a schema.
func NamesRecord(name string, names []string) []byte {
	b, _ := json.Marshal(schema{name, names}) // strings always can be
	return b
}

// Schemas reads the names of all schemas of a folder.
func Schemas(dir string) (map[string][]string, error) {
	all := map[string][]string{}
	err := Read(dir, Name, func(b []byte) bool {
		var s schema
		if json.Unmarshal(b, &s) == nil {
			all[s.Schema] = s.Names
		}
		return true
	})
	return all, err
}

var errRecord = errors.New("a record is damaged")

// Report gives the report of a record and when it arrived.
func (d *Decoder) Report(b []byte) (now float64, r *watch.Report, err error) {
	if len(b) < 9 || b[0] != 1 && b[0] != 2 {
		return 0, nil, errRecord
	}
	whole := b[0] == 2
	now = math.Float64frombits(binary.LittleEndian.Uint64(b[1:]))
	b = b[9:]
	uvarint := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err = errRecord
			b = nil
			return 0
		}
		b = b[n:]
		return v
	}
	n := uvarint()
	if err != nil || n > uint64(len(b)) {
		return 0, nil, errRecord
	}
	r = &watch.Report{}
	if err := json.Unmarshal(b[:n], r); err != nil {
		return 0, nil, errRecord
	}
	b = b[n:]
	count := uvarint()
	if err != nil {
		return 0, nil, err
	}
	if r.Counters == nil {
		return now, r, nil
	}
	v := d.last[r.Host]
	if whole {
		if count > 100_000 {
			return 0, nil, errRecord
		}
		v = &vector{schema: r.Counters.Schema, values: make([]float64, count)}
		d.last[r.Host] = v
	}
	if v == nil || v.schema != r.Counters.Schema || len(v.values) != int(count) {
		return now, r, nil // its beginning is not there
	}
	for i := uint64(0); len(b) > 0; i++ {
		skip := uvarint()
		if err != nil || len(b) == 0 || skip >= count || i+skip >= count {
			return 0, nil, errRecord
		}
		i += skip
		how := b[0]
		b = b[1:]
		if how == 0 {
			x, k := binary.Varint(b)
			if k <= 0 {
				return 0, nil, errRecord
			}
			b = b[k:]
			v.values[i] += float64(x)
		} else if len(b) >= 8 {
			v.values[i] = math.Float64frombits(binary.LittleEndian.Uint64(b))
			b = b[8:]
		} else {
			return 0, nil, errRecord
		}
	}
	r.Counters.Values = append([]float64(nil), v.values...)
	return now, r, nil
}
