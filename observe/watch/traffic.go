package watch

// passing is what the port of a rank's NIC sends and receives, in bytes per second, between the last two reports of its
// counters. Both are 0 where no port is known to be the rank's.
func (m *Machine) passing(r *rank) (tx, rx float64) {
	h := m.hosts[r.host]
	if h == nil {
		return 0, 0
	}
	for _, p := range h.ports {
		if p.place.NIC != "" && p.place.NIC == r.place.NIC || p.Device != "" && p.Device == r.NIC {
			return p.txRate, p.rxRate
		}
	}
	return 0, 0
}
