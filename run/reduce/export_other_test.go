//go:build !amd64

package reduce

// Paths lists the sets of instructions this machine has.
func Paths() []string { return []string{"portable"} }

// Use has no choice here.
func Use(string, int) (restore func()) { return func() {} }

// PastCaches is the threshold as measured; the portable path has none.
func PastCaches() int { return 1 << 62 }
