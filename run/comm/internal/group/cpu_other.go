//go:build !linux || !amd64

package group

// HasCPU says that processors are known by their numbers.
const HasCPU = false

func processor() uint32 { return 0 }
