//go:build !linux || !(amd64 || arm64) || static

package probe

// SampleGPUs gives none: the management library is opened on Linux alone.
func SampleGPUs() []Sample { return []Sample{} }
