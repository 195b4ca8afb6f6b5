package train_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/model"
	"github.com/weft-fabric/weft/run/train/pipe"
)

// Layouts, batches and buckets drawn at random: more replicas than samples,
// micro-batches that do not divide, buckets of one unit and of all.
func TestRandomLayoutsAreASingleProcess(t *testing.T) {
	const seed = 20
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range bounded.Times(6, 16) {
		cfg := tiny()
		cfg.Model = model.Config{Kind: model.GPT, Vocab: 256, Context: 1 + r.IntN(9), Width: 8 * (1 + r.IntN(3)), Heads: 4, Hidden: 12, Layers: 3}
		if r.IntN(3) == 0 {
			cfg.Model.Kind = model.MLP
		}
		cfg.Batch, cfg.Micro = 1+r.IntN(7), 1+r.IntN(4)
		cfg.Seed = uint64(i)
		want := play(t, cfg, 1, 3)
		cfg.Layout = train.Layout{DP: 1 + r.IntN(3), TP: 1 << r.IntN(2), PP: 1 + r.IntN(3), Zero: r.IntN(4)}
		cfg.Schedule = []pipe.Kind{pipe.GPipe, pipe.OneFOneB}[r.IntN(2)]
		cfg.BucketBytes = []int{0, 1, 3000, 1 << 30}[r.IntN(4)]
		cfg.Overlap = r.IntN(2) == 0
		name := fmt.Sprintf("%d: %v, batch %d by %d, %s, buckets of %d", i, cfg.Layout, cfg.Batch, cfg.Micro, cfg.Schedule, cfg.BucketBytes)
		t.Run(name, func(t *testing.T) {
			got := play(t, cfg, cfg.Layout.Ranks(), 3)
			near(t, got, want, 5e-4)
			whole(t, got.boxes)
		})
	}
}
