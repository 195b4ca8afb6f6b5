package mat

import "golang.org/x/sys/cpu"

// best is the widest path this processor and operating system support.
func best() path {
	switch x := cpu.X86; {
	case x.HasAVX512F && x.HasAVX512VL && x.HasFMA:
		return pathAVX512
	case x.HasAVX2 && x.HasFMA:
		return pathAVX2
	}
	return pathPortable
}

var active = best()

// tile is the size of a path's tile.
func (p path) tile() (rows, cols int) {
	switch p {
	case pathAVX512:
		return 12, 32
	case pathAVX2:
		return 6, 16
	}
	return 4, 32
}

// run computes a tile of the given number of rows and all its columns. It is a
// switch because calls through function values would move their arguments to the
// heap.
func (p path) run(rows, k int, a []float32, row, step int, panel, c []float32, ldc int, add bool) {
	left, right, out := &a[0], &panel[0], &c[0]
	switch p {
	case pathAVX512:
		switch rows {
		case 1:
			tile1AVX512(k, left, row, step, right, out, ldc, add)
		case 2:
			tile2AVX512(k, left, row, step, right, out, ldc, add)
		case 3:
			tile3AVX512(k, left, row, step, right, out, ldc, add)
		case 4:
			tile4AVX512(k, left, row, step, right, out, ldc, add)
		case 5:
			tile5AVX512(k, left, row, step, right, out, ldc, add)
		case 6:
			tile6AVX512(k, left, row, step, right, out, ldc, add)
		case 7:
			tile7AVX512(k, left, row, step, right, out, ldc, add)
		case 8:
			tile8AVX512(k, left, row, step, right, out, ldc, add)
		case 9:
			tile9AVX512(k, left, row, step, right, out, ldc, add)
		case 10:
			tile10AVX512(k, left, row, step, right, out, ldc, add)
		case 11:
			tile11AVX512(k, left, row, step, right, out, ldc, add)
		case 12:
			tile12AVX512(k, left, row, step, right, out, ldc, add)
		}
	case pathAVX2:
		switch rows {
		case 1:
			tile1AVX2(k, left, row, step, right, out, ldc, add)
		case 2:
			tile2AVX2(k, left, row, step, right, out, ldc, add)
		case 3:
			tile3AVX2(k, left, row, step, right, out, ldc, add)
		case 4:
			tile4AVX2(k, left, row, step, right, out, ldc, add)
		case 5:
			tile5AVX2(k, left, row, step, right, out, ldc, add)
		case 6:
			tile6AVX2(k, left, row, step, right, out, ldc, add)
		}
	default:
		_, cols := p.tile()
		portableTile(rows, cols, k, a, row, step, panel, c, ldc, add)
	}
}

// lanes is how many elements a vector of a path has.
func (p path) lanes() int { return [...]int{pathPortable: 1, pathAVX2: 8, pathAVX512: 16}[p] }

// exp, gelu and geluBack do what their namesakes say on a beginning of src, and return how long it is.
func (p path) exp(dst, src []float32, shift float32) int {
	n := len(src) / p.lanes()
	if n == 0 || p == pathPortable {
		return 0
	}
	_ = dst[len(src)-1]
	if p == pathAVX512 {
		expAVX512(n, &dst[0], &src[0], shift)
	} else {
		expAVX2(n, &dst[0], &src[0], shift)
	}
	return n * p.lanes()
}

func (p path) gelu(dst, src []float32) int {
	n := len(src) / p.lanes()
	if n == 0 || p == pathPortable {
		return 0
	}
	_ = dst[len(src)-1]
	if p == pathAVX512 {
		geluAVX512(n, &dst[0], &src[0])
	} else {
		geluAVX2(n, &dst[0], &src[0])
	}
	return n * p.lanes()
}

func (p path) geluBack(dst, grad, src []float32) int {
	n := len(src) / p.lanes()
	if n == 0 || p == pathPortable {
		return 0
	}
	_, _ = dst[len(src)-1], grad[len(src)-1]
	if p == pathAVX512 {
		geluBackAVX512(n, &dst[0], &grad[0], &src[0])
	} else {
		geluBackAVX2(n, &dst[0], &grad[0], &src[0])
	}
	return n * p.lanes()
}
