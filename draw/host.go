package draw

import "github.com/weft-fabric/weft/topo"

func (p *page) inside(h topo.HostID) {}
func (p *page) torus(pn *panel)      {}
func (p *page) dragonfly(pn *panel)  {}
