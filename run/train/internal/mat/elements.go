package mat

import "math"

// Constants of exp: x = n ln 2 + r, exp x = 2^n exp r, and exp r by a polynomial
// of degree 7 on |r| <= ln 2 / 2. ln 2 is in two parts so that n times the first
// one is exact.
const (
	expLow   = -87.33654 // below it the result would be subnormal: it is that of expLow
	expHigh  = 88.02969  // above it 2^n would overflow: it is that of expHigh
	log2e    = 1.44269504
	ln2High  = 0.693359375
	ln2Low   = -2.12194440e-4
	nearest  = 12582912 // 1.5 * 2^23: adding it rounds to a whole number, in the lower bits
	nearBits = 0x4b400000

	poly0 = 1.9875691500e-4
	poly1 = 1.3981999507e-3
	poly2 = 8.3334519073e-3
	poly3 = 4.1665795894e-2
	poly4 = 1.6666665459e-1
	poly5 = 5.0000001201e-1

	// gelu(x) = x sigmoid(x (geluA + geluB x^2)), which is the tanh form:
	// geluA = 2 sqrt(2/pi), geluB = 0.044715 geluA.
	geluA = 1.5957691216
	geluB = 0.0713548163
)

// exp is e^x within 2 units in the last place. Products and sums are rounded one
// by one, so that every path has the same bits.
func exp(x float32) float32 {
	x = max(x, expLow)
	x = min(x, expHigh)
	t := float32(x*log2e) + nearest
	n := t - nearest
	x -= float32(n * ln2High)
	x -= float32(n * ln2Low)
	y := float32(poly0)
	y = float32(y*x) + poly1
	y = float32(y*x) + poly2
	y = float32(y*x) + poly3
	y = float32(y*x) + poly4
	y = float32(y*x) + poly5
	y = float32(float32(y*x)*x) + x
	y += 1
	return y * math.Float32frombits((math.Float32bits(t)-nearBits+127)<<23)
}

// sigmoid of a gate's argument.
func gate(x float32) float32 {
	z := float32(x * (geluA + float32(geluB*float32(x*x))))
	return 1 / (1 + exp(-z))
}

// Exp sets dst to exp(src - shift); the two have the same length and may be the same memory.
func Exp(dst, src []float32, shift float32) {
	done := active.exp(dst, src, shift)
	for i, x := range src[done:] {
		dst[done+i] = exp(x - shift)
	}
}

// Gelu sets dst to gelu(src) in its tanh form.
func Gelu(dst, src []float32) {
	done := active.gelu(dst, src)
	for i, x := range src[done:] {
		dst[done+i] = x * gate(x)
	}
}

// GeluBack sets dst to gelu(src) and multiplies grad by the derivative there.
func GeluBack(dst, grad, src []float32) {
	done := active.geluBack(dst, grad, src)
	for i, x := range src[done:] {
		s := gate(x)
		slope := geluA + float32(3*geluB*float32(x*x))
		y := float32(x * s)
		dst[done+i] = y
		grad[done+i] *= s + float32(float32(y*(1-s))*slope)
	}
}
