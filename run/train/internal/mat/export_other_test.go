//go:build !amd64

package mat

// Paths lists the paths that this processor can run.
func Paths() []string { return []string{"portable"} }

// Use does nothing: there is one path.
func Use(string) (restore func()) { return func() {} }
