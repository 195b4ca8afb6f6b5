package train

import (
	"github.com/weft-fabric/weft/run/train/model"
)

const (
	defaultBucket = 25 << 20
	line          = 16 // elements of a cache line: where shares of replicas begin
)

// plan is where a rank's parameters lie and which of them it owns. It is a function
// of configuration, layout and rank alone, so that every rank knows everybody
// else's.
type plan struct {
	layout  Layout
	spot    spot
	net     *model.Net
	buckets []bucket // in the order of the flat buffer
	owned   []segment
	part    int // 1 / part of the flat buffer is owned; part of it is at Lo/part of a bucket
}

// bucket is a run of units whose gradients are reduced together.
type bucket struct {
	model.Span
	from, to int // units
}

// segment is a run of a parameter's elements that a rank owns: it updates them and
// holds the optimizer's state for them.
type segment struct {
	param int // of net.Params
	lo    int // where it begins in the flat buffer
	n     int
	at    int // where it begins in buffers that hold only what is owned
}

// newPlan works out what a rank has of the model: its layers and parts, the buckets in which gradients are summed, and
// the segments of them that it owns. Without ZeRO every replica owns all.
func newPlan(c Config, l Layout, rank int) (*plan, error) {
	s := l.spot(rank)
	net, err := model.New(c.Model, model.Shard{Tensor: s.tensor, Tensors: l.TP, Stage: s.stage, Stages: l.PP}, line*l.DP)
	if err != nil {
		return nil, err
	}
	p := &plan{layout: l, spot: s, net: net, part: 1}
	p.buckets = bucketsOf(net, c.BucketBytes, l.Zero)
	if l.Zero > 0 {
		p.part = l.DP
	}
	for _, b := range p.buckets {
		p.owned = append(p.owned, p.segments(p.share(b.Span, s.replica))...)
	}
	return p, nil
}

// share is the part of a span that a replica owns.
func (p *plan) share(s model.Span, replica int) model.Span {
	if p.part == 1 {
		return s
	}
	n := s.Len() / p.part
	return model.Span{Lo: s.Lo + replica*n, Hi: s.Lo + (replica+1)*n}
}

// segments of the parameters within a span that lies in one bucket. Padding is in none.
func (p *plan) segments(s model.Span) []segment {
	var list []segment
	for i, q := range p.net.Params {
		lo, hi := max(s.Lo, q.At), min(s.Hi, q.At+q.Len())
		if lo < hi {
			list = append(list, segment{param: i, lo: lo, n: hi - lo, at: p.at(lo)})
		}
	}
	return list
}

// at is the place of an owned element in buffers that hold only what is owned:
// shares of buckets one after the other.
func (p *plan) at(flat int) int {
	for _, b := range p.buckets {
		if flat < b.Hi {
			return b.Lo/p.part + flat - p.share(b.Span, p.spot.replica).Lo
		}
	}
	panic("train: element behind the last bucket")
}

// bucketsOf closes a bucket, from the end of the buffer, as soon as it has limit
// bytes. ZeRO 3 gathers parameters by unit, so that there every unit is one.
func bucketsOf(net *model.Net, limit, zero int) []bucket {
	if limit == 0 {
		limit = min(defaultBucket, 4*net.Len/8)
	}
	if zero == 3 {
		limit = 1
	}
	var list []bucket
	for to := len(net.Units); to > 0; {
		from := to - 1
		for from > 0 && 4*(net.Spans[to-1].Hi-net.Spans[from].Lo) < limit {
			from--
		}
		list = append(list, bucket{model.Span{Lo: net.Spans[from].Lo, Hi: net.Spans[to-1].Hi}, from, to})
		to = from
	}
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list
}
