//go:build !linux || !(amd64 || arm64)

package probe

// nvlinks needs NVIDIA's management library, which this system does not have.
func (p *prober) nvlinks() {
	if p.nvidia {
		p.note("NVLink not read: the management library is opened on Linux only")
	}
}
