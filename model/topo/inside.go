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

// Across gives the links from one NIC to another through the fabric that both
// are in, in order, appended to way, even where both are of one host and Route
// would stay inside it. Switches hash the key. It reports false if there is no way.
func (g *Graph) Across(from, to NodeID, key uint64, way []Use) ([]Use, bool) {
	r := routers.Get().(*router)
	defer routers.Put(r)
	r.g = g
	return r.across(from, to, Flow{From: from, To: to, Key: key}, way)
}
