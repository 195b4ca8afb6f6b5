package msccl_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/msccl"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/internal/reference"
)

// Every algorithm without switches goes out and comes back proven, with the
// same bytes from rank to rank and the same results.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	done := 0
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			for _, n := range []int{1, 2, 3, 4, 5, 8, 12} {
				s := algo.Spec{Op: op, Ranks: n, Channels: 1 + n%2, Pieces: 2, Local: []int{0, 4}[n/8%2]}
				if op.Rooted() {
					s.Root = n - 1
				}
				p, err := a.Program(s)
				if err != nil {
					continue
				}
				var b bytes.Buffer
				if err := msccl.Encode(&b, p); err != nil {
					if p.Switches > 0 && strings.Contains(err.Error(), "switches that compute") ||
						(op == sched.Barrier || op == sched.SendRecv) && strings.Contains(err.Error(), "MSCCL does not have") {
						continue
					}
					t.Fatal(a.Name, op, n, err)
				}
				q, err := msccl.Decode(bytes.NewReader(b.Bytes()))
				if err != nil {
					t.Fatalf("%s %s, %d ranks: %v\n%s", a.Name, op, n, err, b.String())
				}
				before, err := verify.Program(p)
				if err != nil {
					t.Fatal(err)
				}
				after, err := verify.Program(q)
				if err != nil {
					t.Fatalf("%s %s, %d ranks: %v\n%s\n%s", a.Name, op, n, err, b.String(), q)
				}
				if before.MaxSent != after.MaxSent || before.Steps < after.Steps || len(before.Links) != len(after.Links) {
					t.Errorf("%s %s, %d ranks: %+v came back as %+v", a.Name, op, n, before, after)
				}
				in := make([][]int64, n)
				for r := range in {
					for range q.NumChunks(sched.In) {
						in[r] = append(in[r], rng.Int64N(1<<40))
					}
				}
				want := reference.Promised(op, s.Root, in)
				got, err := reference.Run(q, in, rng.IntN)
				if err != nil {
					t.Fatal(err)
				}
				for r := range want {
					if want[r] != nil && !slices.Equal(want[r], got[r]) {
						t.Errorf("%s %s, %d ranks: rank %d is wrong", a.Name, op, n, r)
					}
				}
				q.From = nil // not as the file that it is from
				again := new(bytes.Buffer)
				if err := msccl.Encode(again, q); err != nil {
					t.Fatal(err)
				}
				if _, err := msccl.Decode(again); err != nil {
					t.Errorf("%s %s, %d ranks, second time: %v", a.Name, op, n, err)
				}
				done++
			}
		}
	}
	if done < 200 {
		t.Errorf("%d round trips", done)
	}
}

// An all-reduce in place: everybody sends its input to everybody, which adds
// what comes to its own input, in one order for all; thread block 0 waits for
// the others. The steps that reduce are all in i.
const inPlace = `<algo name="allpairs" nchunksperloop="1" nchannels="1" proto="LL" ngpus="2" inplace="1" coll="allreduce" minBytes="8" maxBytes="262144">
  <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="1">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="nop" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="0" depid="0" deps="1" hasdep="0"/>
      <step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="1" s_chunks="1">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
`

// A reduce-scatter in place: the result is in i, at the block of the GPU.
const scattered = `<algo name="rs" nchunksperloop="2" nchannels="1" proto="Simple" ngpus="2" inplace="1" coll="reduce_scatter">
  <gpu id="0" i_chunks="2" o_chunks="1" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrc" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="1" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrc" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
`

// What is written and read is written the same again: scratch for steps that are taken apart
// is only there where there are such steps, and does not grow.
func TestWrittenTwice(t *testing.T) {
	for _, name := range []string{"ring", "direct", "recursive-doubling"} {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: 4, Channels: 2})
		if err != nil {
			t.Fatal(err)
		}
		var first, second bytes.Buffer
		if err := msccl.Encode(&first, p); err != nil {
			t.Fatal(err)
		}
		q, err := msccl.Decode(bytes.NewReader(first.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		q.From = nil
		if err := msccl.Encode(&second, q); err != nil {
			t.Fatal(err)
		}
		if again, err := msccl.Decode(&second); err != nil || again.NumChunks(sched.Tmp) != p.NumChunks(sched.Tmp) {
			t.Errorf("%s: %d chunks of scratch, %d when written twice (%v)", name, p.NumChunks(sched.Tmp), again.NumChunks(sched.Tmp), err)
		}
	}
}

func TestInPlace(t *testing.T) {
	for _, text := range []string{inPlace, scattered} {
		p, err := msccl.Decode(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := verify.Program(p); err != nil {
			t.Errorf("%+v\n%s", err, p)
		}
	}
	// Without the wait the sum may be made before the message is there.
	p, err := msccl.Decode(strings.NewReader(strings.Replace(inPlace, `depid="0" deps="1"`, `depid="-1" deps="-1"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify.Program(p); err == nil {
		t.Error("a race was accepted")
	}
}

func TestBadXMLIsNamed(t *testing.T) {
	for edit, want := range map[[2]string]string{
		{`coll="allreduce"`, `coll="allproduce"`}:                  `unknown coll "allproduce"; known: allreduce`,
		{`type="re"`, `type="red"`}:                                `gpu 0 tb 1 step 1 (red): unknown type "red"; known: s, r`,
		{`ngpus="2"`, `ngpus="3"`}:                                 "ngpus is 3, but there are 2",
		{`<gpu id="1"`, `<gpu id="2"`}:                             "GPU 1 is missing or there twice",
		{`send="1" recv="1"`, `send="7" recv="1"`}:                 "gpu 0 tb 0: peer 7",
		{`send="1" recv="1"`, `send="-1" recv="1"`}:                "sends to nobody",
		{`srcbuf="s" srcoff="0"`, `srcbuf="x" srcoff="0"`}:         `unknown buffer "x"; known: i, o, s`,
		{`srcbuf="s" srcoff="0"`, `srcbuf="s" srcoff="4"`}:         "s[4 +: 1] is outside the 1 chunks",
		{`depid="0" deps="1"`, `depid="0" deps="9"`}:               "depends on thread block 0 step 9, which does not exist",
		{`depid="0" deps="1"`, `depid="1" deps="0"`}:               "comes no earlier",
		{`<tb id="1" send="-1"`, `<tb id="4" send="-1"`}:           "thread block 4 comes where 1 should",
		{`<tb id="1" send="-1"`, `<tb id="1" send="1"`}:            "both send to 1 on channel 0",
		{`step s="1" type="r"`, `step s="3" type="r"`}:             "step 3 comes where 1 should",
		{`cnt="1"`, `cnt="0"`}:                                     "cnt 0",
		{`cnt="1"`, `cnt="many"`}:                                  "invalid syntax",
		{`</algo>`, ``}:                                            "unexpected EOF",
		{`name="allpairs"`, `name=""`}:                             "the name must be one word",
		{`i_chunks="1" o_chunks="1"`, `i_chunks="1" o_chunks="7"`}: "i_chunks is 1; allreduce with 7 chunks has 7",
		{`i_chunks="1"`, `i_chunks="-1"`}:                          "i_chunks -1",
		{inPlace, ``}:                                              "no <algo> element",
		{inPlace, `<system version="1"/>`}:                         "expected element type <algo>",
	} {
		text := strings.Replace(inPlace, edit[0], edit[1], 1)
		if text == inPlace {
			t.Fatalf("%q is not in the file", edit[0])
		}
		if _, err := msccl.Decode(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", edit[1], err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(inPlace)
	f.Add(scattered)
	for _, name := range []string{"ring", "tree", "direct"} {
		a, err := algo.Find(name)
		if err != nil {
			f.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: 3})
		if err != nil {
			f.Fatal(err)
		}
		var b bytes.Buffer
		if err := msccl.Encode(&b, p); err != nil {
			f.Fatal(err)
		}
		f.Add(b.String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := msccl.Decode(strings.NewReader(text))
		if err != nil {
			return
		}
		if _, err := sched.Parse(p.String()); err != nil {
			t.Fatalf("%v\n%s", err, p)
		}
		if p.Ranks > 8 || max(p.NumChunks(sched.In), p.NumChunks(sched.Out), p.NumChunks(sched.Tmp)) > 1000 {
			return
		}
		if _, err := verify.Program(p); err != nil {
			return
		}
		for _, from := range []any{p.From, nil} { // as the file that it is from, and made anew
			p.From = from
			var b bytes.Buffer
			if err := msccl.Encode(&b, p); err != nil {
				t.Fatal(err)
			}
			q, err := msccl.Decode(&b)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := verify.Program(q); err != nil {
				t.Fatalf("%v\n%s\n%s", err, p, q)
			}
			if from != nil && q.String() != p.String() {
				t.Fatalf("reads back as another program\n%s\n%s", p, q)
			}
		}
	})
}
