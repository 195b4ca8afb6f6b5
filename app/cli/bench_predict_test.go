package cli

import "testing"

// A host that is named for several ranks is one host.
func TestHostsOfAPrediction(t *testing.T) {
	for _, x := range []struct {
		hosts []string
		want  int
	}{{nil, 1}, {[]string{"a", "b"}, 2}, {[]string{"a", "a", "a", "b"}, 2}, {[]string{"a", "b", "a", "b", "c"}, 3}} {
		if got := distinct(x.hosts); got != x.want {
			t.Errorf("%v are %d hosts, want %d", x.hosts, got, x.want)
		}
	}
}
