package rank

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/run/elastic"
	"github.com/weft-fabric/weft/run/train"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process that nobody started as a rank says how ranks are started.
func TestMainWithoutAnAgent(t *testing.T) {
	for _, c := range []struct{ config, agent, says string }{
		{"", "", Env},
		{"{", "", Env},
		{"{}", "", elastic.EnvAgent},
		{"{}", "two", "is not a descriptor"},
	} {
		t.Setenv(Env, c.config)
		t.Setenv(elastic.EnvAgent, c.agent)
		if err := Main(context.Background()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s=%q %s=%q: %v; want it to say %q", Env, c.config, elastic.EnvAgent, c.agent, err, c.says)
		}
	}
}

// What an agent puts into the environment is what a rank reads.
func TestTheConfigurationTravels(t *testing.T) {
	cfg := Config{Run: "r", Train: train.Default(), Steps: 7, Contrast: 3, Ckpt: "s3://bucket/prefix", Every: 5, Keep: 2}
	cfg.Train.Layout = train.Layout{TP: 2, PP: 3, Zero: 1}
	cfg.Train.Mirror = true
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var got Config
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, cfg) {
		t.Errorf("%+v\nwas %+v", got, cfg)
	}
}

// Figures are of the last steps: medians, and shares of sums.
func TestWindow(t *testing.T) {
	var w window
	if w.mid(w.forward) != 0 || w.bubble() != 0 || w.busy() != 0 {
		t.Error("figures of no steps")
	}
	for i := range 2 * windowSize {
		w.add(train.Stats{Micros: 4, Forward: time.Duration(i), Backward: 3 * time.Second, Bubble: time.Second, Wall: 4 * time.Second}, 0)
	}
	if len(w.forward) != windowSize || w.micros != 4 {
		t.Errorf("%d steps are kept, %d micro-batches", len(w.forward), w.micros)
	}
	// The last 64 of 0 to 127 are 64 to 127, of which the 33rd is 96.
	if got := w.mid(w.forward); got != windowSize+windowSize/2 {
		t.Errorf("the median is %d", got)
	}
	if got := w.bubble(); got < 0.2499 || got > 0.2501 {
		t.Errorf("1 s of 4 is %v", got)
	}
	if got := w.busy(); got < 0.7499 || got > 0.7501 {
		t.Errorf("3 s of 4 is %v", got)
	}
	if resident() <= 0 {
		t.Error("this process has no memory")
	}
}
