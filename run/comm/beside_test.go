package comm

import "testing"

// Channels run side by side where every rank has cores of its machine for them. Hosts that are namespaces of one machine share its cores.
func TestChannelsThatHaveCores(t *testing.T) {
	on := func(cores int, machines ...string) (list []hello) {
		for _, m := range machines {
			list = append(list, hello{Machine: m, Cores: cores})
		}
		return list
	}
	eight := []string{"a", "a", "a", "a", "a", "a", "a", "a"}
	for _, x := range []struct {
		what   string
		hellos []hello
		want   int
	}{
		{"two ranks on a machine of 16 cores", on(16, "a", "a"), 4},
		{"four ranks on it", on(16, eight[:4]...), 2},
		{"eight ranks on it", on(16, eight...), 1},
		{"two ranks on two cores", on(2, "a", "a"), 1},
		{"two machines of four cores", on(4, "a", "b"), 2},
		{"a machine with few cores", append(on(16, "a", "b"), on(1, "c")...), 1},
		{"many machines", on(16, "a", "b", "c", "d", "e", "f", "g", "h", "i"), 2},
	} {
		if got := beside(x.hellos); got != x.want {
			t.Errorf("%s: %d channels, want %d", x.what, got, x.want)
		}
	}
}
