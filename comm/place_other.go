//go:build !linux || !amd64

package comm

const placed = false

func processor() uint32 { return 0 }
