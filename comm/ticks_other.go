//go:build !amd64

package comm

func ticks() int64 { return clock() }
