//go:build !linux

package affinity

// Allowed are the processors that the calling thread may use; none where they have no
// numbers.
func Allowed() []uint32 { return []uint32{} }

// MoveTo moves the calling thread to a processor.
func MoveTo(uint32) {}

func processor() uint32 { return 0 }
