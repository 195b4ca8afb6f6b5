package synth

import "testing"

// FuzzRead: a text of links is read, or refused with a reason. What is read is whole: every link joins two nodes that have names.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		"r0 r1 25GB/s\nr1 r0 12.5GB/s\n", "r0 - leaf 400Gb/s\nr1 - leaf 50 # a comment\nhost a r0 r1\n",
		"r0,r1,1\nr1,r0,1\n", "r0 r2 1\n", "r00 r1 1\n", "host x r0\nhost y r0\n", "r0 - r1 NaN\n", "r0 - r1 1e300\n",
		"r0 - r9223372036854775807 1\n", "host x r9223372036854775807\nr0 - r1 1\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := Read("f", text)
		if err != nil {
			return
		}
		if n.Ranks < 2 || len(n.Names) < n.Ranks || len(n.Hosts) != len(n.Names) {
			t.Fatalf("%d ranks, %d names, %d hosts", n.Ranks, len(n.Names), len(n.Hosts))
		}
		for _, e := range n.Edges {
			if e.From < 0 || e.From >= len(n.Names) || e.To < 0 || e.To >= len(n.Names) || e.From == e.To || e.Cap < 1 {
				t.Fatalf("link %+v of %d nodes", e, len(n.Names))
			}
		}
	})
}
