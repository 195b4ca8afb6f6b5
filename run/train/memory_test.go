package train_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/model"
)

// heap is what is allocated and in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Memory of ranks against the formulas: what is held within 5% of them, and what is
// counted within 10% of what the runtime says was allocated.
func TestMemoryIsItsFormula(t *testing.T) {
	const ranksUsed = 4
	for zero := range 4 {
		t.Run(fmt.Sprintf("zero %d", zero), func(t *testing.T) {
			cfg := train.Default()
			cfg.Model = model.Config{Kind: model.MLP, Vocab: 256, Context: 8, Width: 128, Hidden: 512, Layers: 4}
			cfg.Batch, cfg.Micro = 8, 1
			cfg.Layout.Zero = zero
			world, err := comm.Local(ranksUsed)
			if err != nil {
				t.Fatal(err)
			}
			w := &crew{t: t, losses: map[int]float64{}, world: world, trainers: make([]*train.Trainer, ranksUsed)}
			// Communicators take their memory when they are first used.
			warm := make([][]float32, ranksUsed)
			w.must(func(r int) error {
				warm[r] = make([]float32, 1<<18)
				return comm.AllReduce(context.Background(), world[r], warm[r], comm.Sum)
			})
			clear(warm)
			before := heap()
			w.must(func(r int) (err error) {
				w.trainers[r], err = train.New(context.Background(), cfg, world[r])
				return err
			})
			w.until(2)
			grown := heap() - before
			counted := 0
			for r, tr := range w.trainers {
				m := tr.Memory()
				_, own := tr.Params()
				if m.Formula != train.Formula(zero, own, ranksUsed) {
					t.Errorf("rank %d: formula %d", r, m.Formula)
				}
				if d := math.Abs(float64(m.Held()-m.Formula)) / float64(m.Formula); d > 0.05 {
					t.Errorf("rank %d holds %d bytes, by formula %d: %.1f%% apart", r, m.Held(), m.Formula, 100*d)
				}
				if (zero >= 2) != (m.Buckets > 0) || (zero == 3) != (m.Gathered > 0) || m.Activation == 0 || m.Working == 0 {
					t.Errorf("rank %d: %+v", r, m)
				}
				counted += m.Total()
			}
			if d := math.Abs(float64(grown-counted)) / float64(counted); d > 0.1 {
				t.Errorf("%d ranks count %d bytes, the heap grew by %d: %.1f%% apart", ranksUsed, counted, grown, 100*d)
			}
			w.end()
		})
	}
}

// The published figures, in float32: 16 bytes a parameter, of which ZeRO shares 8,
// 12 or all among the replicas.
func TestFormula(t *testing.T) {
	for zero, want := range []int{16_000, 8_000 + 2_000, 4_000 + 3_000, 4_000} {
		if got := train.Formula(zero, 1000, 4); got != want {
			t.Errorf("zero %d: %d bytes, want %d", zero, got, want)
		}
	}
}

// Stages of 1F1B hold fewer activations than those of GPipe, the first more than the last.
func TestActivationsOfStages(t *testing.T) {
	kept := func(change func(*train.Config)) []train.Memory {
		cfg := tiny()
		cfg.Layout.PP, cfg.Micro, cfg.Model.Vocab = 4, 1, 256
		change(&cfg)
		return play(t, cfg, 4, 1).memory
	}
	f := kept(func(c *train.Config) {})
	g := kept(func(c *train.Config) { c.Schedule = "gpipe" })
	// Micro-batches in flight, of 8: 4, 3, 2, 1 against 8 on every stage.
	for s, want := range []float64{2, 8.0 / 3, 4, 8} {
		if got := float64(g[s].Activation) / float64(f[s].Activation); math.Abs(got-want) > 0.01 {
			t.Errorf("stage %d keeps %.2f times as much with gpipe, want %.2f", s, got, want)
		}
	}
}

// What replicas hand to collectives: gradients once a step without ZeRO and with 1
// (which gathers parameters, too, from the second step on), once a micro-batch with
// 2 and 3, and with 3 parameters for each use.
func TestBytesOfReplicas(t *testing.T) {
	cfg := tiny()
	cfg.Layout.DP = 2
	_, own := func() (int, int) {
		tr, err := train.New(context.Background(), tiny(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return tr.Params()
	}()
	size := 4 * own
	micros := cfg.Batch / 2 / cfg.Micro
	for zero, want := range []float64{1, 2, float64(micros) + 1, float64(micros) * 3} {
		cfg.Layout.Zero = zero
		got := play(t, cfg, 2, 2).stats[1]
		// Padding, and with 3 units that are used twice in a row are gathered once.
		if r := float64(got.Bytes) / float64(size); r < want*0.75 || r > want*1.05 {
			t.Errorf("zero %d: %.2f times the gradients' bytes, want about %.0f", zero, r, want)
		}
		if got.Micros != micros || got.Comm <= 0 || got.Exposed > got.Wall {
			t.Errorf("zero %d: %+v", zero, got)
		}
	}
}
