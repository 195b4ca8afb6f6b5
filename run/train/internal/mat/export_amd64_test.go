package mat

// Paths lists the paths that this processor can run.
func Paths() []string {
	var list []string
	for p := pathPortable; p <= best(); p++ {
		list = append(list, p.String())
	}
	return list
}

// Use makes a path the active one until restore is called.
func Use(name string) (restore func()) {
	before := active
	for p := pathPortable; p <= best(); p++ {
		if p.String() == name {
			active = p
		}
	}
	return func() { active = before }
}
