package synth

import "math"

// endless is a capacity that no cut can contain.
const endless = math.MaxInt64 / 8

// flow is a network for maximum flows (Dinic): links in pairs, one the reverse
// of the other. Its capacities can be put back and changed between runs.
type flow struct {
	head  []int32 // by node: its last link, -1 for none
	next  []int32 // by link: the link of its node before
	to    []int32
	cap   []int64
	full  []int64 // capacities at the start
	level []int32
	at    []int32
	queue []int32
}

func newFlow(nodes int) *flow {
	f := &flow{head: make([]int32, nodes), level: make([]int32, nodes), at: make([]int32, nodes)}
	for i := range f.head {
		f.head[i] = -1
	}
	return f
}

// link adds a directed link and gives its number.
func (f *flow) link(from, to int, c int64) int {
	i := len(f.to)
	f.to = append(f.to, int32(to), int32(from))
	f.full = append(f.full, c, 0)
	f.cap = append(f.cap, c, 0)
	f.next = append(f.next, f.head[from], f.head[to])
	f.head[from], f.head[to] = int32(i), int32(i+1)
	return i
}

// set changes the capacity of a link for the runs to come.
func (f *flow) set(link int, c int64) { f.full[link] = c }

// run finds the maximum flow from s to t, or stops at want.
func (f *flow) run(s, t int, want int64) int64 {
	copy(f.cap, f.full)
	return f.more(s, t, want)
}

// more goes on with what is left of the capacities.
func (f *flow) more(s, t int, want int64) int64 {
	var total int64
	for total < want && f.levels(s, t) {
		copy(f.at, f.head)
		for total < want {
			got := f.push(int32(s), int32(t), want-total)
			if got == 0 {
				break
			}
			total += got
		}
	}
	return total
}

func (f *flow) levels(s, t int) bool {
	for i := range f.level {
		f.level[i] = -1
	}
	f.level[s] = 0
	f.queue = append(f.queue[:0], int32(s))
	for i := 0; i < len(f.queue); i++ {
		v := f.queue[i]
		for l := f.head[v]; l >= 0; l = f.next[l] {
			if u := f.to[l]; f.cap[l] > 0 && f.level[u] < 0 {
				f.level[u] = f.level[v] + 1
				f.queue = append(f.queue, u)
			}
		}
	}
	return f.level[t] >= 0
}

func (f *flow) push(v, t int32, most int64) int64 {
	if v == t {
		return most
	}
	var sent int64
	for ; f.at[v] >= 0; f.at[v] = f.next[f.at[v]] {
		l := f.at[v]
		u := f.to[l]
		if f.cap[l] <= 0 || f.level[u] != f.level[v]+1 {
			continue
		}
		got := f.push(u, t, min(most-sent, f.cap[l]))
		f.cap[l] -= got
		f.cap[l^1] += got
		if sent += got; sent == most {
			return sent
		}
	}
	return sent
}

// side says which nodes s still reaches after a maximum flow: the cut nearest to s.
func (f *flow) side(s int) []bool {
	in := make([]bool, len(f.head))
	f.levels(s, s)
	for v := range in {
		in[v] = f.level[v] >= 0
	}
	return in
}

// far says which nodes do not reach t any more: the cut nearest to t.
func (f *flow) far(t int) []bool {
	reaches := make([]bool, len(f.head))
	reaches[t] = true
	queue := []int32{int32(t)}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for l := f.head[v]; l >= 0; l = f.next[l] {
			if u := f.to[l]; f.cap[l^1] > 0 && !reaches[u] {
				reaches[u] = true
				queue = append(queue, u)
			}
		}
	}
	in := make([]bool, len(reaches))
	for v := range in {
		in[v] = !reaches[v]
	}
	return in
}
