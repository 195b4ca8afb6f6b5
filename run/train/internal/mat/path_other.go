//go:build !amd64

package mat

// Only amd64 has kernels of its own.
const active = pathPortable

func (p path) tile() (rows, cols int) { return 4, 32 }

func (p path) run(rows, k int, a []float32, row, step int, panel, c []float32, ldc int, add bool) {
	_, cols := p.tile()
	portableTile(rows, cols, k, a, row, step, panel, c, ldc, add)
}

func (p path) exp(dst, src []float32, shift float32) int { return 0 }
func (p path) gelu(dst, src []float32) int               { return 0 }
func (p path) geluBack(dst, grad, src []float32) int     { return 0 }
