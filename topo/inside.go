package topo

// Inside gives the links from one part of a host to another over its PCIe tree
// and sockets, in order, appended to way: the way that GPUs take when they do
// not use their own network, which Route would prefer. It reports false if
// there is none.
func (g *Graph) Inside(from, to NodeID, way []Use) ([]Use, bool) {
	r := routers.Get().(*router)
	defer routers.Put(r)
	r.g = g
	return r.inside(from, to, way)
}
