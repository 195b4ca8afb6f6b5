package kv

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// carve cuts the blocks of the ranks of one width into named parts and joins them for the ranks of another one, with
// python/weft/_shards.py, which Python clients use. Cases come as lines of JSON: heads, ranks and bytes of a run on both sides, and the
// bytes of every rank.
const carve = `
import base64, json, sys
sys.path.insert(0, "../../python/weft")
from _shards import Shards
for line in sys.stdin:
    c = json.loads(line)
    parts = {}
    for rank, data in enumerate(c["Data"]):
        s = Shards(c["Heads"], rank, c["From"])
        if s.stores:
            for name, part in zip(s.mine, s.cut(base64.b64decode(data), c["FromRun"])):
                assert name not in parts, "two ranks store part %d" % name
                parts[name] = bytes(part)
    out = []
    for rank in range(c["To"]):
        s = Shards(c["Heads"], rank, c["To"])
        out.append(base64.b64encode(bytes(s.join([parts[name] for name in s.mine], c["ToRun"]))).decode())
    print(json.dumps(out))
`

type carved struct {
	Heads, From, To, FromRun, ToRun int
	Data                            [][]byte
}

// Python clients and kv.Moves bring a block from any width to any other in the same way: the same bytes on every rank.
func TestShardsOfPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	r := rand.New(rand.NewPCG(36, 1))
	var in bytes.Buffer
	var want [][][]byte
	for range bounded.Times(300, 20_000) {
		c, bytes := randomCase(t, r)
		line, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		in.Write(append(line, '\n'))
		want = append(want, bytes)
	}
	cmd := bounded.Command(t, python, "-c", carve)
	cmd.Stdin = &in
	var text bytes.Buffer
	cmd.Stderr = &text
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, text.Bytes())
	}
	lines := json.NewDecoder(bytes.NewReader(out))
	for i := range want {
		var got [][]byte
		if err := lines.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want[i]) {
			t.Fatalf("case %d: %d ranks; want %d", i, len(got), len(want[i]))
		}
		for rank := range got {
			if !bytes.Equal(got[rank], want[i][rank]) {
				t.Fatalf("case %d: rank %d has other bytes than kv.Moves brings it", i, rank)
			}
		}
	}
}

// randomCase draws a block on ranks of one width, and gives what kv.Moves makes of it on the ranks of another.
func randomCase(t *testing.T, r *rand.Rand) (carved, [][]byte) {
	heads := []int{1, 2, 4, 6, 8, 16, 24, 32}[r.IntN(8)]
	width := func() int {
		for {
			n := 1 + r.IntN(2*heads)
			if heads%n == 0 || n%heads == 0 {
				return n
			}
		}
	}
	from := Layout{Layers: 1 + r.IntN(3), Heads: heads, Dim: 1 + r.IntN(4), Elem: 1 + r.IntN(2), Planes: 1 + r.IntN(2), Block: 1 + r.IntN(5),
		Blocks: 1,
		Ranks:  width(), HeadsFirst: r.IntN(2) == 0, Together: r.IntN(2) == 0, PageFirst: r.IntN(2) == 0}
	to := from
	to.Ranks = width()
	run := func(l Layout) int {
		if l.HeadsFirst {
			return l.heads() * l.Block * l.row()
		}
		return l.heads() * l.row()
	}
	c := carved{Heads: heads, From: from.Ranks, To: to.Ranks, FromRun: run(from), ToRun: run(to)}
	moves, err := Moves(from, to, []int{0}, []int{0}, Part{Tokens: from.Block})
	if err != nil {
		t.Fatal(err)
	}
	whole := map[[5]int]byte{} // each vector's first byte, so that copies of a head are equal
	for rank := range from.Ranks {
		data := make([]byte, from.Bytes())
		for layer := range from.Layers {
			for plane := range from.Planes {
				for token := range from.Block {
					for head := range from.heads() {
						key := [5]int{layer, plane, token, from.head(rank) + head}
						if _, known := whole[key]; !known {
							whole[key] = byte(r.Uint32())
						}
						at := from.At(layer, plane, 0, token, head)
						for i := range from.row() {
							data[at+i] = whole[key] + byte(i)
						}
					}
				}
			}
		}
		c.Data = append(c.Data, data)
	}
	out := make([][]byte, to.Ranks)
	for rank := range out {
		out[rank] = make([]byte, to.Bytes())
	}
	for _, m := range moves {
		copy(out[m.To][m.Dst:m.Dst+m.Len], c.Data[m.From][m.Src:])
	}
	return c, out
}
