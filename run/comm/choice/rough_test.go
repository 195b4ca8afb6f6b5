package choice

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/cost"
)

// Whatever the ranks of a host find of what 2 to 8 found on two cores, quiet or not, in
// hundreds of measurements (2026-11-16): every call runs the same program, and so has the
// same bits.
func TestMeasurementsChooseAlike(t *testing.T) {
	want := map[int]*Table{}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 9).Draw(t, "ranks")
		number := func(name string, least, most float64) float64 { return rapid.Float64Range(least, most).Draw(t, name) }
		links := cost.Links{Kind: "tcp", Ranks: n, Cores: 2, Sync: number("meeting", 1, 5000),
			Paces: []cost.Pace{{Traffic: float64(n * 48 << 10), Byte: number("small pace", 2.3e-6, 5.6e-6)},
				{Traffic: float64(n * 768 << 10), Byte: number("pace", 7.2e-6, 10e-6)},
				{Traffic: float64(n * 12 << 20), Byte: number("large pace", 14e-6, 65e-6)}},
			Near: cost.Link{Alpha: number("way", 0, 5), Post: number("post", 1.7, 6), Beta: number("byte", 6e-5, 2.6e-4)}}
		if rapid.Bool().Draw(t, "doubtful") {
			links.Doubtful = true
			links.Near = cost.Link{Alpha: number("doubtful way", 0, 1500), Post: number("doubtful post", 0.1, 100),
				Beta: number("doubtful byte", 2e-6, 3e-3)}
		}
		if want[n] == nil {
			want[n] = New(desk(n), can["tcp"], n, nil)
		}
		table := New(links, can["tcp"], n, nil)
		op, bytes := rapid.SampledFrom(sched.Collectives()).Draw(t, "op"), rapid.Int64Range(0, 1<<30).Draw(t, "bytes")
		a, err := want[n].Pick(op, 0, bytes, false)
		if err != nil {
			t.Fatal(err)
		}
		b, err := table.Pick(op, 0, bytes, false)
		if err != nil {
			t.Fatal(err)
		}
		if a.Program.Digest() != b.Program.Digest() {
			t.Fatalf("%s of %d bytes: %s and %s", op, bytes, a.Algo, b.Algo)
		}
	})
}

// Hosts that are quite different count as such, and so does the way between hosts.
func TestRoughLinks(t *testing.T) {
	links := desk(4)
	links.Near = cost.Link{Alpha: 30, Post: 40, Beta: 1e-3}
	links.Far = cost.Link{Alpha: 4, Post: 2, Beta: 1e-4, Wire: 7e-3}
	got := rough(links, 2)
	if want := (cost.Link{Alpha: 4, Post: 24, Beta: 8e-4}); got.Near != want {
		t.Errorf("%+v inside a host, want %+v", got.Near, want)
	}
	if want := (cost.Link{Alpha: 1.75, Post: 3, Beta: 1.5e-4, Wire: 51.2e-4}); got.Far != want {
		t.Errorf("%+v between hosts, want %+v", got.Far, want)
	}
	links.Doubtful = true
	if again := rough(links, 2); again.Near != usual.Near || again.Far.Wire != got.Far.Wire {
		t.Errorf("doubtful: %+v", again)
	}
	links.Hosts, links.Far.Alpha = 2, 25 // namespaces of one machine, as found beside other work (2026-11-19)
	if near := rough(links, 2).Far; near.Alpha > 2*sameMachine.Alpha || near.Wire != sameMachine.Wire {
		t.Errorf("hosts of one machine, doubtful: %+v", near)
	}
	links.Doubtful = false
	if near := rough(links, 2).Far; near.Alpha > 2*sameMachine.Alpha {
		t.Errorf("hosts of one machine that share cores: %+v", near)
	}
	links.Cores = 4
	if far := rough(links, 2).Far; far.Alpha < 10 {
		t.Errorf("hosts of one machine with a core for every rank: %+v", far)
	}
	links.Cores = 2
	links.Doubtful, links.Far.Post = true, 0.1 // a message that took nothing beside the time that ranks waited
	if post := New(links, can["tcp"], 2, []int{0, 1}).Post(); post != cost.Span(sameMachine.Post) {
		t.Errorf("a doubtful message takes %v of a core", post)
	}
	if twice := rough(got, 2); twice.Near != got.Near || twice.Far != got.Far || twice.Paces[2] != got.Paces[2] {
		t.Errorf("%+v rounded again: %+v", got, twice)
	}
	if links.Paces[0] != desk(4).Paces[0] {
		t.Error("what was measured has changed")
	}
}
