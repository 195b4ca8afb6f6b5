package reference

// Pipe joins two nodes of a network, with a capacity each way.
type Pipe struct {
	A, B        int
	There, Back int64
}

// Flow is the greatest flow from the first node to the last: one shortest augmenting way after another (Edmonds, Karp 1972).
func Flow(nodes int, list []Pipe) (total int64) {
	room := make([][]int64, nodes)
	for i := range room {
		room[i] = make([]int64, nodes)
	}
	for _, p := range list {
		if p.A != p.B {
			room[p.A][p.B] += p.There
			room[p.B][p.A] += p.Back
		}
	}
	for {
		from := shortest(room)
		if from[nodes-1] < 0 {
			return total
		}
		least := int64(1 << 62)
		for w := nodes - 1; w != 0; w = from[w] {
			least = min(least, room[from[w]][w])
		}
		for w := nodes - 1; w != 0; w = from[w] {
			room[from[w]][w] -= least
			room[w][from[w]] += least
		}
		total += least
	}
}

// shortest gives for each node the one before it on a shortest way with room from the first; -1 where there is none.
func shortest(room [][]int64) []int {
	from := make([]int, len(room))
	for i := range from[1:] {
		from[1+i] = -1
	}
	queue := []int{0}
	for q := 0; q < len(queue); q++ {
		for w, r := range room[queue[q]] {
			if r > 0 && from[w] < 0 {
				from[w] = queue[q]
				queue = append(queue, w)
			}
		}
	}
	return from
}
