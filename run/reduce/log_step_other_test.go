//go:build unix && !linux

package reduce_test

func thisThread() int { return 0 }
