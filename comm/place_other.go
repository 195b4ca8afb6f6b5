//go:build !linux || !amd64

package comm

const placed = false

func processor() uint32 { return 0 }

func allowed() []uint32 { return []uint32{} }

func moveTo(uint32) {}
