package agent

import (
	"strconv"

	"github.com/weft-fabric/weft/observe/probe"
)

// GPU is a GPU as NVIDIA's management library sees it.
type GPU = probe.Sample

// gpus asks the management library. Without one there are none.
func (a *Agent) gpus(s *Snapshot, observe func(device, port, metric string, v float64)) {
	if a.c.Root != "" {
		return
	}
	s.GPUs = probe.SampleGPUs()
	for _, g := range s.GPUs {
		if g.Replays >= 0 {
			observe("gpu"+strconv.Itoa(g.Index), "", "pcie_replay", float64(g.Replays))
		}
		if g.ECC >= 0 {
			observe("gpu"+strconv.Itoa(g.Index), "", "gpu_ecc", float64(g.ECC))
		}
		if g.NVLinks >= 0 { // a share of what was up at the start
			was := max(a.nvlinks[g.Index], g.NVLinks)
			a.nvlinks[g.Index] = was
			if was > 0 {
				observe("gpu"+strconv.Itoa(g.Index), "", "nvlinks", float64(g.NVLinks)/float64(was))
			}
		}
	}
}
