package work

// CNN is a residual network of bottleneck blocks, as ResNet-50 and ResNet-152 are.
type CNN struct {
	Blocks  [4]int `json:"blocks"` // in each of the four stages
	Image   int    `json:"image"`  // pixels a side
	Classes int    `json:"classes"`
}

// conv walks all convolutions: kernel, channels in and out, pixels a side of the result.
func (c *CNN) conv(visit func(kernel, in, out, side float64)) {
	side := float64(c.Image) / 2
	visit(7, 3, 64, side)
	side /= 2
	in := 64.0
	for stage, n := range c.Blocks {
		width := 64.0 * float64(int(1)<<stage)
		for b := range n {
			at := side
			if b == 0 && stage > 0 {
				side /= 2
			}
			visit(1, in, width, at)
			visit(3, width, width, side)
			visit(1, width, 4*width, side)
			if b == 0 {
				visit(1, in, 4*width, side)
			}
			in = 4 * width
		}
	}
}

// params counts weights, with a scale and a bias for the norm after each convolution.
func (c *CNN) params() float64 {
	n := 2048*float64(c.Classes) + float64(c.Classes)
	c.conv(func(k, in, out, _ float64) { n += k*k*in*out + 2*out })
	return n
}

// forward counts operations of one image, a multiplication and an addition being two.
func (c *CNN) forward() float64 {
	n := 2 * 2048 * float64(c.Classes)
	c.conv(func(k, in, out, side float64) { n += 2 * k * k * in * out * side * side })
	return n
}

// Activations is what backward needs of one image, in numbers: every convolution's and norm's input.
func (c *CNN) Activations() float64 {
	n := 0.0
	c.conv(func(_, _, out, side float64) { n += 2 * out * side * side })
	return n
}
