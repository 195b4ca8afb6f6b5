package doctor_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

func initDone(rank, n int) string {
	return fmt.Sprintf("n%d:%d:%d [%d] NCCL INFO ncclCommInitRankConfig comm 0x55d2c0%02d rank %d nranks %d cudaDev %d nvmlDev %d busId 1b000 commId 0x8f2e1c44 - Init COMPLETE\n",
		rank/4, 4100+rank, 4200+rank, rank%4, rank, rank, n, rank%4, rank%4)
}

// eight is a job of eight ranks of which one says nothing when the others time out: one text a rank.
func eight(silent int, more string) map[string]string {
	files := map[string]string{}
	for r := range 8 {
		text := initDone(r, 8) + "2026-10-02 03:14:07,118 step 1841 loss 2.0931\n"
		if r == silent {
			text += more
		} else {
			text += timedOut(r, 14728, "ALLREDUCE", 16777216)
		}
		files[fmt.Sprintf("logs/rank%d.log", r)] = text
	}
	return files
}

// together puts texts into one file.
func together(files map[string]string) map[string]string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b.WriteString(files[name])
	}
	return file(b.String())
}

// The rank that does not say that it timed out is the one that the others wait for.
func TestSilentRankIsNamed(t *testing.T) {
	without := func(files map[string]string, name string) map[string]string {
		delete(files, name)
		return files
	}
	bare := map[string]string{} // without NCCL_DEBUG: nothing tells how many ranks there are
	for r := range 8 {
		if r != 3 {
			bare[fmt.Sprint(r)] = timedOut(r, 14728, "ALLREDUCE", 16777216)
		}
	}
	for _, c := range []struct {
		name     string
		files    map[string]string
		culprit  int
		class    string
		from, to float64
	}{
		{"a file a rank", eight(3, ""), 3, "host", 0.7, 0.9},
		{"rank 0", eight(0, ""), 0, "host", 0.7, 0.9},
		{"the last rank", eight(7, ""), 7, "host", 0.7, 0.9},
		{"one file", together(eight(3, "")), 3, "host", 0.7, 0.9},
		{"its file is missing", without(eight(3, ""), "logs/rank3.log"), 3, "missing", 0.3, 0.6},
		{"a gap in the numbers", together(bare), 3, "host", 0.5, 0.7},
	} {
		r := diagnose(t, c.files)
		h := r.Hang
		if h == nil || !slices.Equal(h.Culprits, []int{c.culprit}) || h.Class != c.class || h.Confidence < c.from || h.Confidence > c.to ||
			len(h.Waiting) != 7 {
			t.Errorf("%s: %+v\n%s", c.name, h, r.Verdict)
		}
		if strings.Contains(strings.ToLower(fmt.Sprint(r.Verdict, r.Findings)), "all ranks timed out") {
			t.Errorf("%s: %s", c.name, r.Verdict)
		}
	}
	// All speak: nobody is named. Half are silent: their logs may be elsewhere.
	if r := diagnose(t, eight(-1, "")); r.Hang != nil || found(r, "watchdog-same-place") == nil {
		t.Errorf("all speak: %+v", r.Hang)
	}
	half := eight(-1, "")
	for r := range 4 {
		delete(half, fmt.Sprintf("logs/rank%d.log", r))
	}
	r := diagnose(t, half)
	if f := found(r, "watchdog-same-place"); r.Hang != nil || f == nil || f.Title != "4 of 8 ranks timed out in one operation" ||
		f.Confidence > 0.5 || !slices.Equal(r.Jobs[0].Silent, []int{0, 1, 2, 3}) {
		t.Errorf("half are not there: %+v %+v %+v", r.Hang, f, r.Jobs)
	}
}

// A rank that is silent because it saves a checkpoint is named with that cause; one that has saved is not.
func TestSilentRankSavesCheckpoint(t *testing.T) {
	for _, c := range []struct {
		name, text string
		blocks     bool
	}{
		{"Megatron", "saving checkpoint at iteration    1841 to /lustre/ckpt in torch format\n", true},
		{"Megatron, done",
			"saving checkpoint at iteration    1841 to /lustre/ckpt in torch format\n  successfully saved checkpoint at iteration    1841 to /lustre/ckpt\n",
			false},
		{"Transformers", "[INFO|trainer.py:3410] 2026-10-02 03:14:09,001 >> Saving model checkpoint to out/checkpoint-1841\n", true},
		{"DeepSpeed",
			"[2026-10-02 03:14:09,001] [INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving out/global_step1841/mp_rank_00_model_states.pt...\n",
			true},
		{"DeepSpeed, done",
			"[2026-10-02 03:14:09,001] [INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving out/x.pt...\n[2026-10-02 03:14:39,001] [INFO] [torch_checkpoint_engine.py:23:save] [Torch] Saved out/x.pt.\n",
			false},
		{"steps after it", "Saving checkpoint to /ckpt/1800\n" + strings.Repeat("2026-10-02 03:14:07,118 step 1841 loss 2.0931\n", 40), false},
		{"no save", "", false},
	} {
		for how, files := range map[string]map[string]string{"apart": eight(0, c.text), "together": together(eight(0, c.text))} {
			if how == "together" && c.name == "steps after it" {
				continue // whose steps these are is not told
			}
			r := diagnose(t, files)
			f := found(r, "checkpoint-blocks")
			if (f != nil) != c.blocks || r.Hang == nil || !slices.Equal(r.Hang.Culprits, []int{0}) {
				t.Errorf("%s, %s: %+v %+v", c.name, how, r.Hang, f)
			}
			if c.blocks && f != nil && (r.Findings[0].ID != f.ID || f.Severity != doctor.Critical ||
				!strings.Contains(r.Verdict, "saves a checkpoint")) {
				t.Errorf("%s, %s: %s", c.name, how, r.Verdict)
			}
		}
	}
}
