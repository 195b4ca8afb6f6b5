package catalog

// Default gives the built-in catalogue. The caller owns it and may change it.
func Default() *Catalog {
	return &Catalog{
		Links:    keyed(links(), func(l Link) string { return l.Gen }),
		GPUs:     keyed(gpus(), func(g GPU) string { return g.Name }),
		NICs:     keyed(nics(), func(n NIC) string { return n.Name }),
		Switches: keyed(switches(), func(s Switch) string { return s.Name }),
		Hosts:    keyed(hosts(), func(h Host) string { return h.Name }),
		Cables:   keyed(cables(), func(c Cable) string { return c.Name }),
	}
}

// keyed makes a map of a list. A key given twice is a mistake in the tables of this package.
func keyed[T any](list []T, key func(T) string) map[string]T {
	m := make(map[string]T, len(list))
	for _, v := range list {
		if _, twice := m[key(v)]; twice {
			panic("catalog: " + key(v) + " is listed twice")
		}
		m[key(v)] = v
	}
	return m
}
