package rings

// minCut finds a smallest cut of an undirected multigraph, given as the number
// of links between each two of n vertices: the fewest links whose loss parts
// the graph, and one side of it. Every ring crosses every cut at least once each
// way and a link carries one ring each way, so no more rings fit than this.
//
// Stoer and Wagner 1997: n-1 times, add vertices in the order of how tightly
// they are tied to those already in; the last one's ties are a cut; then merge
// the last two. A cut around a single vertex wins among equals.
func minCut(links [][]int16) (size int, side []int) {
	n := len(links)
	size = -1
	for v := range n {
		if d := degree(links, v); size < 0 || d < size {
			size, side = d, []int{v}
		}
	}
	weight := make([][]int, n)
	merged := make([][]int, n)
	for v := range n {
		weight[v] = make([]int, n)
		for u := range n {
			weight[v][u] = int(links[v][u])
		}
		merged[v] = []int{v}
	}
	alive := make([]int, n)
	for v := range n {
		alive[v] = v
	}
	for len(alive) > 1 {
		tie := make([]int, n)
		in := make([]bool, n)
		prev, last := -1, -1
		for range alive {
			next := -1
			for _, v := range alive {
				if !in[v] && (next < 0 || tie[v] > tie[next]) {
					next = v
				}
			}
			in[next] = true
			prev, last = last, next
			for _, v := range alive {
				if !in[v] {
					tie[v] += weight[next][v]
				}
			}
		}
		if tie[last] < size {
			size, side = tie[last], append([]int(nil), merged[last]...)
		}
		merged[prev] = append(merged[prev], merged[last]...)
		kept := alive[:0]
		for _, v := range alive {
			if v != last {
				weight[prev][v] += weight[last][v]
				weight[v][prev] = weight[prev][v]
				kept = append(kept, v)
			}
		}
		alive = kept
	}
	return size, side
}

func degree(links [][]int16, v int) int {
	d := 0
	for _, c := range links[v] {
		d += int(c)
	}
	return d
}
