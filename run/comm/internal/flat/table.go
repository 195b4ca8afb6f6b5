package flat

import (
	"errors"
	"unsafe"

	"github.com/weft-fabric/weft/run/reduce"
)

// A form of n ranks that all have something for one another takes n² words and as much time to find. Where ranks see one another's
// memory one of them finds it and writes it down as a table for all: a rank reads its own part, and that of another rank when it
// does that one's work.
//
// The table, in words of 32 bits: ranks, flags, orders; where the part of each rank begins, and where the last one ends; the orders,
// each with its length; the parts.

const (
	flagInPlace = 1 << iota
	flagPushes
	flagRooted
)

const tableHead = 3

// Table is the form as a table.
func (f *Form) Table() []byte {
	n := len(f.parts)
	w := writer{list: make([]int32, tableHead+n+1), orders: map[*reduce.Order]int32{nil: -1}}
	flags := int32(0)
	for i, set := range []bool{f.InPlace, f.Pushes, f.Rooted} {
		if set {
			flags |= 1 << i
		}
	}
	for i := range f.parts {
		for _, k := range f.parts[i].Sums {
			w.order(k.Order)
		}
	}
	for i, r := range f.parts {
		w.list[tableHead+i] = int32(len(w.list))
		w.rank(r)
	}
	w.list[0], w.list[1], w.list[2], w.list[tableHead+n] = int32(n), flags, int32(len(w.orders)-1), int32(len(w.list))
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w.list))), 4*len(w.list))
}

// FromTable is the form that a table holds. The table must stay as it is for as long as the form is used.
func FromTable(b []byte) (*Form, error) {
	if len(b) < 4*tableHead || len(b)%4 != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%4 != 0 {
		return nil, errTable
	}
	list := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
	n := int(list[0])
	if n < 1 || n > len(list)-tableHead-1 || int(list[tableHead+n]) != len(list) {
		return nil, errTable
	}
	flags := list[1]
	f := &Form{InPlace: flags&flagInPlace != 0, Pushes: flags&flagPushes != 0, Rooted: flags&flagRooted != 0, parts: make([]*Rank, n),
		table: list}
	r := reader{list: list[tableHead+n+1:]}
	for range list[2] {
		merges := make([]uint8, r.count(1))
		for i := range merges {
			merges[i] = uint8(r.next())
		}
		order, err := reduce.NewOrder(merges)
		if err != nil || r.bad {
			return nil, errors.Join(errTable, err)
		}
		f.orders = append(f.orders, order)
	}
	return f, nil
}

var errTable = errors.New("the table of a program's form is not whole")

// read reads the part of a rank.
func (f *Form) read(rank int) (*Rank, error) {
	from, to := f.table[tableHead+rank], f.table[tableHead+rank+1]
	if from < 0 || to < from || int(to) > len(f.table) {
		return nil, errTable
	}
	r := reader{list: f.table[from:to], orders: f.orders}
	part := r.rank()
	if r.bad || len(r.list) > 0 {
		return nil, errTable
	}
	return part, nil
}

type writer struct {
	list   []int32
	orders map[*reduce.Order]int32
}

func (w *writer) put(v ...int32) { w.list = append(w.list, v...) }

func (w *writer) all(v []int32) {
	w.put(int32(len(v)))
	w.put(v...)
}

// order writes an order down once.
func (w *writer) order(o *reduce.Order) {
	if _, known := w.orders[o]; known {
		return
	}
	w.orders[o] = int32(len(w.orders) - 1)
	merges := o.Merges(0)
	w.put(int32(len(merges)))
	for _, m := range merges {
		w.put(int32(m))
	}
}

func (w *writer) kernels(list []Kernel) {
	w.put(int32(len(list)))
	for _, k := range list {
		w.put(w.orders[k.Order])
		for _, chunks := range [][]Chunk{k.Srcs, k.Dsts} {
			w.put(int32(len(chunks)))
			for _, c := range chunks {
				w.put(c.Rank, c.Index)
			}
		}
	}
}

func (w *writer) rank(r *Rank) {
	w.kernels(r.Sums)
	w.kernels(r.Moves)
	w.put(int32(len(r.Fetches)))
	for _, f := range r.Fetches {
		w.put(f.Rank, f.Sum, f.Chunk)
	}
	w.put(int32(r.First))
	for _, list := range [][]int32{r.Exports, r.Reads, r.Readers, r.Helps} {
		w.all(list)
	}
}

type reader struct {
	list   []int32
	orders []*reduce.Order
	bad    bool
}

func (r *reader) next() int32 {
	if len(r.list) == 0 {
		r.bad = true
		return 0
	}
	v := r.list[0]
	r.list = r.list[1:]
	return v
}

// count is the length of a list whose elements have some words each at least.
func (r *reader) count(words int) int {
	n := int(r.next())
	if n < 0 || n*words > len(r.list) {
		r.bad = true
		return 0
	}
	return n
}

func (r *reader) all() []int32 {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	v := append([]int32(nil), r.list[:n]...)
	r.list = r.list[n:]
	return v
}

func (r *reader) chunks() []Chunk {
	list := make([]Chunk, r.count(2))
	for i := range list {
		list[i] = Chunk{r.next(), r.next()}
	}
	return list
}

// kernels reads a list of reductions. The table comes from another process: an order that does not exist sets bad, and
// the caller throws the table away.
func (r *reader) kernels() []Kernel {
	n := r.count(3)
	if n == 0 {
		return nil
	}
	list := make([]Kernel, n)
	for i := range list {
		if o := int(r.next()); o >= len(r.orders) {
			r.bad = true
		} else if o >= 0 {
			list[i].Order = r.orders[o]
		}
		list[i].Srcs, list[i].Dsts = r.chunks(), r.chunks()
	}
	return list
}

func (r *reader) rank() *Rank {
	part := &Rank{Sums: r.kernels(), Moves: r.kernels()}
	if n := r.count(3); n > 0 {
		part.Fetches = make([]Fetch, n)
	}
	for i := range part.Fetches {
		part.Fetches[i] = Fetch{r.next(), r.next(), r.next()}
	}
	part.First = int(r.next())
	part.Exports, part.Reads, part.Readers, part.Helps = r.all(), r.all(), r.all(), r.all()
	part.OneWay = len(part.Reads) == 0 || len(part.Readers) == 0
	return part
}
