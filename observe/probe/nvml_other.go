//go:build !linux || !(amd64 || arm64) || static

package probe

// nvlinks needs NVIDIA's management library, which other systems and static builds do not open.
func (p *prober) nvlinks() {
	if p.nvidia {
		p.note("NVLink not read: this build does not open the management library")
	}
}
