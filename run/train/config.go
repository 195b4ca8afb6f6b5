package train

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/train/internal/data"
	"github.com/weft-fabric/weft/run/train/internal/optim"
	"github.com/weft-fabric/weft/run/train/model"
	"github.com/weft-fabric/weft/run/train/pipe"
)

// Layout is how ranks share the work. Rank r has
//
//	tensor rank  r mod TP                 innermost: talks most, within a unit
//	stage        r / TP mod PP            talks once a micro-batch
//	replica      r / (TP PP)              talks once a step
type Layout struct {
	DP   int // replicas: each reads its share of a global batch; 0: as many as the ranks make
	TP   int // ranks that share every unit
	PP   int // stages that share the units
	Zero int // what replicas share: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too
}

// Ranks is the number of ranks of a layout.
func (l Layout) Ranks() int { return l.DP * l.TP * l.PP }

func (l Layout) String() string {
	s := fmt.Sprintf("dp %d, tp %d, pp %d", l.DP, l.TP, l.PP)
	if l.Zero > 0 {
		s += fmt.Sprintf(", zero %d", l.Zero)
	}
	return s
}

// on is the layout with DP filled in for a number of ranks.
func (l Layout) on(ranks int) (Layout, error) {
	l.TP, l.PP = max(1, l.TP), max(1, l.PP)
	each := l.TP * l.PP
	if ranks < 1 || ranks%each != 0 {
		return l, fmt.Errorf("train: %d ranks do not make whole replicas of tp %d x pp %d = %d ranks", ranks, l.TP, l.PP, each)
	}
	if l.DP == 0 {
		l.DP = ranks / each
	}
	if l.Ranks() != ranks {
		return l, fmt.Errorf("train: layout of %v has %d ranks, the communicator %d; leave dp 0 to take what there is", l, l.Ranks(), ranks)
	}
	if l.Zero < 0 || l.Zero > 3 {
		return l, fmt.Errorf("train: zero %d; known: 0, 1, 2, 3", l.Zero)
	}
	return l, nil
}

// Fit is the layout that a number of ranks can run. TP and PP stay as they are while there
// are enough ranks for a replica, since a rank may not have the memory for more of the
// model: there are as many replicas as are whole, and ranks beyond the last are spare.
// With fewer ranks it is TP without stages or stages without TP, whichever cuts the
// model into more parts, and with fewer still replicas alone.
//
//	tp 2, pp 2 on   16 ranks: dp 4     15: dp 3, 3 spare     3: dp 1, tp 2, 1 spare     1: dp 1
func (l Layout) Fit(ranks int) Layout {
	tp, pp := max(1, l.TP), max(1, l.PP)
	cuts := [][2]int{{tp, pp}, {tp, 1}, {1, pp}, {1, 1}}
	if pp > tp {
		cuts[1], cuts[2] = cuts[2], cuts[1]
	}
	for _, v := range cuts {
		if n := v[0] * v[1]; ranks >= n {
			return Layout{DP: ranks / n, TP: v[0], PP: v[1], Zero: l.Zero}
		}
	}
	return l // no ranks at all
}

// spot is a rank's place in a layout.
type spot struct{ replica, stage, tensor int }

func (l Layout) spot(rank int) spot {
	return spot{tensor: rank % l.TP, stage: rank / l.TP % l.PP, replica: rank / (l.TP * l.PP)}
}

// Elastic is what keeps a run's course when the number of replicas changes.
type Elastic string

// The choices.
const (
	KeepBatch Elastic = "batch" // the global batch stays as it is: fewer ranks accumulate more
	ScaleRate Elastic = "rate"  // samples a replica stay: batch and learning rate follow the number of replicas
)

// Config is a run.
type Config struct {
	Model    model.Config
	Layout   Layout
	Schedule pipe.Kind   // order of the passes where PP > 1
	Batch    int         // samples of a global batch; step s reads the same ones in every layout
	Micro    int         // samples of a micro-batch, at most; replicas accumulate ceil(Batch/DP/Micro) of them
	Rate     optim.Rate  // learning rate by step
	Adam     optim.AdamW //
	Clip     float64     // of the gradients' global norm; 0: not clipped
	Seed     uint64      // of initial values and data order
	Text     []byte      // to learn from; nil: data.Corpus
	Wire     reduce.Type // of gradients between ranks: Float32, BFloat16 or Float16, which is scaled by 1024
	Overlap  bool        // gradients are reduced while backward goes on, parameters gathered ahead
	// BucketBytes is from how many bytes on gradients are reduced together. Units are
	// not cut. 0: 25 MiB, or an eighth of a rank's gradients if that is less, so that
	// there is something to overlap.
	BucketBytes int
	Elastic     Elastic
	// Mirror keeps what a rank alone holds (with ZeRO, or without replicas) a second
	// time on the next rank, so that a rank that dies takes nothing with it. It costs
	// 16 bytes an owned parameter, and 4 on the wire a step.
	Mirror bool

	wanted Layout // that was asked for, where ranks are too few for it
	fitted bool   // Layout is what Fit made of it: ranks beyond it are spare
}

// Default trains the small GPT on the project's documents: 32 samples of 64 bytes a
// step, micro-batches of 8.
func Default() Config {
	return Config{
		Model: model.Small(), Layout: Layout{TP: 1, PP: 1}, Schedule: pipe.OneFOneB,
		Batch: 32, Micro: 8,
		Rate: optim.Rate{Peak: 3e-3, Warmup: 20}, Adam: optim.Default(), Clip: 1,
		Seed: 1, Wire: reduce.Float32, Overlap: true, Elastic: KeepBatch,
	}
}

// wires are the types that gradients may travel in.
var wires = []reduce.Type{reduce.Float32, reduce.BFloat16, reduce.Float16}

// Check says what is wrong with a run of that number of ranks.
func (c Config) Check(ranks int) error {
	_, err := c.complete(ranks)
	return err
}

// complete fills in what is left open and reports what is wrong.
func (c Config) complete(ranks int) (Config, error) {
	if c.Schedule == "" {
		c.Schedule = pipe.OneFOneB
	}
	if c.Wire == 0 {
		c.Wire = reduce.Float32
	}
	if c.Elastic == "" {
		c.Elastic = KeepBatch
	}
	if c.Text == nil {
		c.Text = data.Corpus()
	}
	if c.Adam == (optim.AdamW{}) {
		c.Adam = optim.Default()
	}
	var err error
	if c.fitted {
		ranks = min(ranks, c.Layout.Ranks())
	}
	c.Layout, err = c.Layout.on(ranks)
	errs := []error{err, c.Model.Check(), c.Adam.Check(), c.Schedule.Check()}
	if c.Batch < 1 || c.Micro < 1 {
		errs = append(errs, fmt.Errorf("train: batch is %d samples and micro-batch %d; both are at least 1", c.Batch, c.Micro))
	}
	if c.Clip < 0 || c.Rate.Peak <= 0 {
		errs = append(errs, fmt.Errorf("train: clip is %v and learning rate %v; the first is at least 0, the second above", c.Clip, c.Rate.Peak))
	}
	if !slices.Contains(wires, c.Wire) {
		errs = append(errs, fmt.Errorf("train: gradients as %v on the wire; known: %v", c.Wire, wires))
	}
	if c.BucketBytes < 0 {
		errs = append(errs, fmt.Errorf("train: buckets of %d bytes; 0 takes a size that fits", c.BucketBytes))
	}
	if c.Elastic != KeepBatch && c.Elastic != ScaleRate {
		errs = append(errs, fmt.Errorf("train: elastic %q; known: %s, %s", c.Elastic, KeepBatch, ScaleRate))
	}
	for _, b := range c.Text {
		if int(b) >= c.Model.Vocab {
			errs = append(errs, fmt.Errorf("train: the text has byte %d, the model knows %d symbols; give it a vocab of 256", b, c.Model.Vocab))
			break
		}
	}
	return c, errors.Join(errs...)
}
