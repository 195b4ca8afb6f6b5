package model

import "math"

const epsilon = 1e-5

// Layer norm of rows of width d with gain and bias:
//
//	h = (x - mean x) / sqrt(var x + epsilon)
//	y = gain h + bias
//
// It keeps h and one over the root for every row.

func normKeep(rows, d int) int { return rows*d + rows }

// norm computes y from x and fills keep.
func norm(y, x, gain, bias, keep []float32) {
	d := len(gain)
	rows := len(x) / d
	hat, inverse := keep[:rows*d], keep[rows*d:]
	for r := range rows {
		row, h, out := x[r*d:][:d], hat[r*d:][:d], y[r*d:][:d]
		mean := sum(row) / float32(d)
		for j, v := range row {
			h[j] = v - mean
		}
		inv := float32(1 / math.Sqrt(float64(dot(h, h)/float32(d)+epsilon)))
		inverse[r] = inv
		for j := range h {
			v := h[j] * inv
			h[j] = v
			out[j] = v*gain[j] + bias[j]
		}
	}
}

// normAgain computes y from what norm kept.
func normAgain(y, gain, bias, keep []float32) {
	d := len(gain)
	for r := 0; r*d < len(y); r++ {
		h, out := keep[r*d:][:d], y[r*d:][:d]
		for j, v := range h {
			out[j] = v*gain[j] + bias[j]
		}
	}
}

// normBack adds to gain's and bias's gradients, and adds to dx (or sets it) the
// gradient that dy has there. With h = gain-scaled gradient,
//
//	dx = (h - mean h - hat mean(h hat)) / sqrt(var + epsilon)
func normBack(dx, dgain, dbias, dy, gain, keep []float32, add bool) {
	d := len(gain)
	rows := len(dy) / d
	inverse := keep[rows*d:]
	for r := range rows {
		hat, grad, out := keep[r*d:][:d], dy[r*d:][:d], dx[r*d:][:d]
		var mean, along float32
		for j, v := range grad {
			dgain[j] += v * hat[j]
			dbias[j] += v
			w := v * gain[j]
			grad[j] = w
			mean += w
			along += w * hat[j]
		}
		mean /= float32(d)
		along /= float32(d)
		inv := inverse[r]
		if add {
			for j, w := range grad {
				out[j] += (w - mean - hat[j]*along) * inv
			}
		} else {
			for j, w := range grad {
				out[j] = (w - mean - hat[j]*along) * inv
			}
		}
	}
}

// sum and dot add in four chains, which are joined at the end.
func sum(x []float32) float32 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		a += x[0]
		b += x[1]
		c += x[2]
		d += x[3]
	}
	for _, v := range x {
		a += v
	}
	return (a + b) + (c + d)
}

// dot sums in four lanes, always in the same order: the result does not depend on the machine.
func dot(x, y []float32) float32 {
	var a, b, c, d float32
	y = y[:len(x)]
	for len(x) >= 4 && len(y) >= 4 {
		a += x[0] * y[0]
		b += x[1] * y[1]
		c += x[2] * y[2]
		d += x[3] * y[3]
		x, y = x[4:], y[4:]
	}
	for i, v := range x {
		a += v * y[i]
	}
	return (a + b) + (c + d)
}
