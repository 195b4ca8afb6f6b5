package reduce

// Paths lists the sets of instructions this machine has.
func Paths() []string {
	var list []string
	for p := pathPortable; p <= best(); p++ {
		list = append(list, p.String())
	}
	return list
}

// Use makes reductions take a path, and destinations of that many bytes be stored
// past the caches; it returns what restores both.
func Use(name string, past int) (restore func()) {
	was, wasPast := active, pastCaches
	for p := pathPortable; p <= best(); p++ {
		if p.String() == name {
			active = p
		}
	}
	pastCaches = past
	return func() { active, pastCaches = was, wasPast }
}

// PastCaches is the threshold as measured.
func PastCaches() int { return pastCaches }
