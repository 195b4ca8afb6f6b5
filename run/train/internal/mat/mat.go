// Package mat multiplies matrices of float32 on one core.
//
// Every element of a product is one chain of fused multiply-adds along k in
// ascending order, begun at zero or at what C held:
//
//	c = 0 or C[i][j];  for p = 0 .. k-1:  c = fma(A[i][p], B[p][j], c)
//
// so a result has the same bits however the work is cut into tiles and whichever
// of the three paths (AVX-512, AVX2, portable) computes it. The portable path pays
// for that by rounding a sum in float64 by hand: it is the definition first and
// the fallback second.
//
// Measured on one core of a Xeon of 2023 (BenchmarkMul, 256 x 512 x 128,
// 2026-11-15): AVX-512 107 GFlop/s, AVX2 68, portable 0.3; gonum's Sgemm 14.
package mat

import (
	"fmt"
	"math"
)

//go:generate go -C gen run . -isa avx2 -pkg mat -out ../avx2_amd64.s -stubs ../avx2_amd64.go
//go:generate go -C gen run . -isa avx512 -pkg mat -out ../avx512_amd64.s -stubs ../avx512_amd64.go

// M is a view of a matrix: element (i, j) is Data[i*RowStep+j*ColStep].
type M struct {
	Data             []float32
	Rows, Cols       int
	RowStep, ColStep int
}

// Of is the view of data as rows of cols elements each. It panics where data is too short.
func Of(data []float32, rows, cols int) M {
	if len(data) < rows*cols {
		panic(fmt.Sprintf("mat: %d x %d matrix over %d elements; it needs %d", rows, cols, len(data), rows*cols))
	}
	return M{Data: data, Rows: rows, Cols: cols, RowStep: cols, ColStep: 1}
}

// T is the transpose, over the same memory.
func (m M) T() M {
	return M{Data: m.Data, Rows: m.Cols, Cols: m.Rows, RowStep: m.ColStep, ColStep: m.RowStep}
}

// Part is the rows x cols part that begins at (row, col), over the same memory.
func (m M) Part(row, col, rows, cols int) M {
	if row < 0 || col < 0 || rows < 0 || cols < 0 || row+rows > m.Rows || col+cols > m.Cols {
		panic(fmt.Sprintf("mat: part %d x %d at (%d, %d) of a %d x %d matrix", rows, cols, row, col, m.Rows, m.Cols))
	}
	p := m
	p.Rows, p.Cols = rows, cols
	if rows > 0 && cols > 0 {
		p.Data = m.Data[row*m.RowStep+col*m.ColStep:]
	}
	return p
}

// end is one more than the index of the last element.
func (m M) end() int {
	if m.Rows == 0 || m.Cols == 0 {
		return 0
	}
	return (m.Rows-1)*m.RowStep + (m.Cols-1)*m.ColStep + 1
}

const (
	deep = 256 // k of one packed panel: 32 KiB of L1 with the widest tile
	tall = 768 // rows of A that are gone over with one panel: 768 KiB of L2 at most

	tileColumns = 32 // of the widest tile
	tileRows    = 12
)

// Space is the working memory of one caller. The zero value is ready; it is not
// for several goroutines at once.
type Space struct {
	panel []float32
	tile  []float32
}

// Mul computes c = a b, or c = c + a b with add. It panics where shapes do not
// fit, and where c is not stored by rows. c shares no memory with a and b.
func (s *Space) Mul(c, a, b M, add bool) {
	if a.Cols != b.Rows || c.Rows != a.Rows || c.Cols != b.Cols || c.ColStep != 1 {
		panic(fmt.Sprintf("mat: %d x %d = %d x %d times %d x %d, rows of the result %d apart in steps of %d",
			c.Rows, c.Cols, a.Rows, a.Cols, b.Rows, b.Cols, c.RowStep, c.ColStep))
	}
	if c.end() > len(c.Data) || a.end() > len(a.Data) || b.end() > len(b.Data) {
		panic(fmt.Sprintf("mat: product over %d, %d and %d elements; its views need %d, %d and %d",
			len(c.Data), len(a.Data), len(b.Data), c.end(), a.end(), b.end()))
	}
	if c.Rows == 0 || c.Cols == 0 {
		return
	}
	if a.Cols == 0 {
		if !add {
			for i := range c.Rows {
				clear(c.Data[i*c.RowStep:][:c.Cols])
			}
		}
		return
	}
	if s.panel == nil {
		s.panel = make([]float32, deep*tileColumns)
		s.tile = make([]float32, tileRows*tileColumns)
	}
	rows, cols := active.tile()
	for p := 0; p < a.Cols; p += deep {
		k := min(deep, a.Cols-p)
		for top := 0; top < c.Rows; top += tall {
			bottom := min(top+tall, c.Rows)
			for j := 0; j < c.Cols; j += cols {
				n := min(cols, c.Cols-j)
				pack(s.panel[:k*cols], b.Part(p, j, k, n), cols)
				for i := top; i < bottom; i += rows {
					m := min(rows, bottom-i)
					left := a.Data[i*a.RowStep+p*a.ColStep:]
					out := c.Data[i*c.RowStep+j:]
					if n == cols {
						active.run(m, k, left, a.RowStep, a.ColStep, s.panel, out, c.RowStep, add || p > 0)
						continue
					}
					// The last columns go through a whole tile of their own.
					if add || p > 0 {
						for r := range m {
							copy(s.tile[r*cols:], out[r*c.RowStep:][:n])
						}
					}
					active.run(m, k, left, a.RowStep, a.ColStep, s.panel, s.tile, cols, add || p > 0)
					for r := range m {
						copy(out[r*c.RowStep:][:n], s.tile[r*cols:])
					}
				}
			}
		}
	}
}

// pack lays the columns of b side by side, cols to a row, zeros where b has fewer.
func pack(panel []float32, b M, cols int) {
	if b.Cols < cols {
		clear(panel)
	}
	if b.ColStep == 1 {
		for p := range b.Rows {
			copy(panel[p*cols:][:b.Cols], b.Data[p*b.RowStep:][:b.Cols])
		}
		return
	}
	for j := range b.Cols {
		at := j * b.ColStep
		if b.RowStep == 1 {
			for p, v := range b.Data[at:][:b.Rows] {
				panel[p*cols+j] = v
			}
			continue
		}
		for p := range b.Rows {
			panel[p*cols+j] = b.Data[at+p*b.RowStep]
		}
	}
}

// path is the set of instructions in use.
type path uint8

const (
	pathPortable path = iota
	pathAVX2
	pathAVX512
)

func (p path) String() string { return [...]string{"portable", "AVX2", "AVX-512"}[p] }

// portableTile is the definition of a tile: rows x cols of c over k.
func portableTile(rows, cols, k int, a []float32, row, step int, panel, c []float32, ldc int, add bool) {
	for i := range rows {
		out := c[i*ldc:][:cols]
		if !add {
			clear(out)
		}
		for p := range k {
			x := a[i*row+p*step]
			for j, y := range panel[p*cols:][:cols] {
				out[j] = fma(x, y, out[j])
			}
		}
	}
}

// fma is a*b+c rounded once. The product of two float32 is exact in float64; the
// sum is rounded to odd there, so that rounding it again to float32 gives what one
// rounding would have.
func fma(a, b, c float32) float32 {
	x, y := float64(a)*float64(b), float64(c)
	sum := x + y
	part := sum - x
	err := (x - (sum - part)) + (y - part)
	if bits := math.Float64bits(sum); err != 0 && bits&1 == 0 && !math.IsInf(sum, 0) && sum == sum {
		if (err > 0) == (sum > 0) {
			bits++
		} else {
			bits--
		}
		sum = math.Float64frombits(bits)
	}
	return float32(sum)
}
