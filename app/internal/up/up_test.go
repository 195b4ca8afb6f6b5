package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/ckpt"
	"github.com/weft-fabric/weft/run/elastic/node"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/model"
)

// Nobody disturbs a run: all steps are taken in one epoch, with the losses of a
// single process, and the page has them.
func TestARun(t *testing.T) {
	page := make(chan string, 1)
	var text strings.Builder
	_, sum := counted(t, func() (*show, Summary, bool) {
		text.Reset()
		s := begin(t, Options{Steps: 30, Check: true, Every: 10, Contrast: 5, Listen: "127.0.0.1:0", Summary: &text,
			Ready: func(p, _ string) { page <- p }})
		at := <-page
		s.await("training begins with step 1, from the seed")
		resp, err := http.Get(at + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), "<html") {
			t.Errorf("%s: %s, %v", at, resp.Status, err)
		}
		sum := s.checked(1)
		return s, sum, sum.Steps == 30 && sum.Epochs == 1 && sum.Failures == 0 && sum.Kills == 0 && sum.Lost == 0 &&
			sum.Checkpoints == 3 && sum.Detect == nil
	})
	if sum.LossEnd >= sum.LossStart {
		t.Errorf("the loss went from %v to %v", sum.LossStart, sum.LossEnd)
	}
	for _, want := range []string{"30 in ", "on 4 ranks (dp 4, tp 1, pp 1)", "passed: the losses of 30 steps"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the summary does not say %q:\n%s", want, text.String())
		}
	}
	b, err := json.Marshal(sum)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"steps", "loss_start", "loss_end", "tokens_per_s", "epochs", "kills", "detect_ms", "resume_ms", "steps_lost",
		"overlap_hidden"} {
		if !strings.Contains(string(b), `"`+name+`":`) {
			t.Errorf("no %s in %s", name, b)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// Ranks are killed by the drill: every one is overcome, no step is lost, and the
// losses are those of an undisturbed run.
func TestDrillKill(t *testing.T) {
	_, sum := counted(t, func() (*show, Summary, bool) {
		s := begin(t, Options{For: 2500e6, Drill: Drill{{"kill", 3}}, Seed: 7, Check: true, Every: 20})
		sum := s.checked(1)
		return s, sum, sum.Kills == 3 && sum.Failures == 3 && sum.Lost == 0 && sum.Detect != nil && sum.Resume != nil
	})
	for _, i := range sum.Incidents {
		if !i.Over || i.Kind != "kill" || i.Detect <= 0 || i.Resume < i.Detect {
			t.Errorf("%+v", i)
		}
	}
}

// The coordinator is killed by the drill and started again; then a rank is.
func TestDrillCoordinator(t *testing.T) {
	counted(t, func() (*show, Summary, bool) {
		s := begin(t, Options{Drill: Drill{{"coord", 1}}, Check: true, Ranks: 3, For: 100e6, Steps: 100_000})
		s.await("SIGKILL to the coordinator")
		s.await("it is started again on its directory")
		sum := s.checked(1)
		return s, sum, sum.Coordinators == 1 && sum.Failures == 0 && sum.Epochs == 1
	})
}

// layouts are those in which a rank holds something that no replica has.
var layouts = bounded.First(2, []struct {
	name   string
	layout train.Layout
}{
	{"zero 3", train.Layout{TP: 1, PP: 1, Zero: 3}},
	{"tp 2 pp 2", train.Layout{TP: 2, PP: 2}},
	{"zero 1", train.Layout{TP: 1, PP: 1, Zero: 1}},
	{"zero 2", train.Layout{TP: 1, PP: 1, Zero: 2}},
}...)

// State that died with its rank comes back from the latest checkpoint.
func TestKillsThatLoseState(t *testing.T) {
	for _, c := range layouts {
		t.Run(c.name, func(t *testing.T) {
			cfg := tiny()
			cfg.Layout = c.layout
			counted(t, func() (*show, Summary, bool) {
				dir := t.TempDir()
				s := begin(t, Options{Train: cfg, Check: true, Ckpt: dir, Every: 5, Keep: 2, Steps: 100_000})
				hasCheckpoint(t, dir)
				s.hurt(syscall.SIGKILL, "rank", 2)
				s.await("from the checkpoint of step")
				s.await("resumed")
				s.await("epoch", ": 4 at work")
				s.stop()
				sum := s.checked(1)
				return s, sum, sum.Failures == 1
			})
		})
	}
}

// losesNothing kills one of four ranks, whose state others have, and waits until it is at work again.
func losesNothing(t *testing.T, o Options, rank int) *show {
	s, _ := counted(t, func() (*show, Summary, bool) {
		o.Ckpt = t.TempDir()
		s := begin(t, o)
		hasCheckpoint(t, o.Ckpt) // so that all ranks are known to be at work
		s.hurt(syscall.SIGKILL, "rank", rank)
		s.await("resumed", " 0 steps lost")
		s.await("epoch", ": 4 at work")
		s.stop()
		sum := s.checked(1)
		return s, sum, sum.Failures == 1 && sum.Lost == 0
	})
	return s
}

// With a mirror of it on another rank, no step is lost.
func TestKillsThatAMirrorStandsInFor(t *testing.T) {
	for _, c := range layouts {
		t.Run(c.name, func(t *testing.T) {
			cfg := tiny()
			cfg.Layout, cfg.Mirror = c.layout, true
			s := losesNothing(t, Options{Train: cfg, Check: true, Every: 5, Keep: 2, Steps: 100_000}, 2)
			if strings.Contains(s.story(), "from the checkpoint") {
				t.Error("a checkpoint was needed")
			}
		})
	}
}

// All ranks are killed at once, several times: the run goes on from the checkpoint
// each time, and ends when it is told to. What is lost is counted once.
func TestAllAreKilledAtOnce(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Check: true, Ckpt: dir, Every: 5, Keep: 2, Steps: 100_000, Min: 2})
	hasCheckpoint(t, dir)
	for range 3 {
		s.hurt(syscall.SIGKILL, "rank", 0)
		for slot := 1; slot < 4; slot++ {
			for _, p := range children() {
				if p.verb == "rank" && p.slot == slot {
					_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have gone
				}
			}
		}
		s.await("from the checkpoint of step")
		s.await("epoch", ": 4 at work")
	}
	s.stop()
	sum := s.checked(1)
	lost := 0
	for _, l := range s.lines {
		var step, n int
		if _, err := fmt.Sscanf(l, "failure     no rank at work is left: back to step %d, %d steps lost", &step, &n); err == nil {
			lost += n
		}
	}
	if sum.Lost != lost {
		t.Errorf("%d steps lost in the end, %d one by one", sum.Lost, lost)
	}
	if m := hasCheckpoint(t, dir); m.Step != int64(sum.Steps) {
		t.Errorf("the last checkpoint is of step %d, the run ended with %d", m.Step, sum.Steps)
	}
}

// hasCheckpoint waits until there is one.
func hasCheckpoint(t *testing.T, dir string) *ckpt.Manifest {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		store, err := ckpt.Open(ctx, dir, ckpt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m, _, err := store.Latest(ctx)
		store.Close()
		if err == nil {
			return m
		}
		if ctx.Err() != nil {
			t.Fatalf("no checkpoint came: %v", err)
		}
	}
}

// Tensor and pipeline parallel ranks whose state a replica has: nothing is lost.
func TestAKillThatAReplicaStandsInFor(t *testing.T) {
	cfg := tiny()
	cfg.Layout = train.Layout{TP: 2, PP: 1}
	losesNothing(t, Options{Train: cfg, Check: true, Every: 5, Steps: 100_000}, 1)
}

// A run is continued from its checkpoints on another number of ranks: the same data
// in the same order, and the losses of a run that never stopped. A checkpoint of
// another model is refused, and stays.
func TestContinuing(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Steps: 12, Ckpt: dir, Every: 4, Keep: 2, Check: true})
	s.checked(1)
	m := hasCheckpoint(t, dir)
	if m.Step != 12 || m.Data != 12*16 || m.World != 4 || m.Layout["dp"] != 4 {
		t.Errorf("%+v", m)
	}
	s = begin(t, Options{Steps: 22, Ckpt: dir, Every: 4, Keep: 2, Check: true, Ranks: 3})
	s.await("training begins with step 13, from the checkpoint of step 12, on 3 ranks")
	s.checked(13)
	if m = hasCheckpoint(t, dir); m.Step != 22 || m.Data != 22*16 || m.World != 3 { // the end is saved, too
		t.Errorf("%+v", m)
	}
	before := contents(t, dir)

	other := tiny()
	other.Model = model.TinyMLP()
	s = begin(t, Options{Train: other, Steps: 30, Ckpt: dir, Every: 4, Keep: 2})
	if _, err := s.ends(); !isUse(err) || !strings.Contains(err.Error(), "is of another run") || !strings.Contains(err.Error(), dir) {
		t.Errorf("another model: %v", err)
	}
	if after := contents(t, dir); !maps.Equal(before, after) {
		t.Errorf("the folder had %d files and has %d", len(before), len(after))
	}
}

// A rank dies as often as it is started: fewer than the least are left for longer
// than they are waited for. They save where they stand, and the next run goes on from there.
func TestTooFewAreLeft(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Steps: 100_000, Ckpt: dir, Every: 5, Min: 4, comeBack: time.Second})
	hasCheckpoint(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	var killer sync.WaitGroup
	killer.Go(func() {
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			for _, p := range children() {
				if p.verb == "rank" && p.slot == 3 {
					_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may be gone
				}
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		killer.Wait()
	})
	sum, err := s.ends()
	cancel()
	killer.Wait()
	var halt *node.HaltError
	if !errors.As(err, &halt) || !strings.Contains(err.Error(), "worker 3 ") {
		t.Errorf("%v", err)
	}
	m := hasCheckpoint(t, dir)
	if m.Step != int64(sum.Steps) || m.Data != 16*m.Step {
		t.Errorf("%d steps were taken; %+v", sum.Steps, m)
	}
	if !strings.Contains(s.story(), fmt.Sprintf("emergency checkpoint of step %d", sum.Steps)) {
		t.Error("no word of an emergency checkpoint")
	}
	s = begin(t, Options{Steps: int(m.Step) + 5, Ckpt: dir, Check: true})
	s.checked(int(m.Step) + 1)
}

// Ctrl-C: ranks finish their step.
func TestToldToStop(t *testing.T) {
	s := begin(t, Options{Check: true, Ranks: 2})
	s.await("training begins")
	s.stop()
	sum, err := s.ends()
	if err != nil || sum.Failures != 0 || sum.Checked != sum.Steps {
		t.Errorf("%+v, %v", sum, err)
	}
}

// However a run ends in an orderly way, its last step is saved, and a run to the same
// step has nothing to do.
func TestGracefulEndsSave(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Steps: 7, Ckpt: dir, Every: 5})
	if sum, err := s.ends(); err != nil || sum.Steps != 7 {
		t.Fatalf("%+v, %v", sum, err)
	}
	if m := hasCheckpoint(t, dir); m.Step != 7 || m.Data != 7*16 {
		t.Errorf("--steps 7 left %+v", m)
	}
	before := contents(t, dir)
	for _, steps := range []int{7, 5} {
		var text strings.Builder
		s = begin(t, Options{Steps: steps, Ckpt: dir, Every: 5, Summary: &text})
		if sum, err := s.ends(); err != nil || sum.Steps != 7 ||
			!strings.Contains(text.String(), fmt.Sprintf("step %d has been taken already", steps)) {
			t.Errorf("--steps %d again: %+v, %v, %q", steps, sum, err, text.String())
		}
	}
	if after := contents(t, dir); !maps.Equal(before, after) {
		t.Errorf("the folder had %d files and has %d", len(before), len(after))
	}
	// Told to stop, or out of time, and without checkpoints on the way.
	for _, o := range []Options{{}, {For: 1}} {
		o.Ckpt, o.Check = dir, true
		from := int(hasCheckpoint(t, dir).Step)
		s = begin(t, o)
		s.await("training begins")
		if o.For == 0 {
			s.await("epoch") // any word: it has begun
			s.stop()
		}
		sum := s.checked(from + 1)
		if m := hasCheckpoint(t, dir); m.Step != int64(sum.Steps) || sum.Steps <= from {
			t.Errorf("steps %d to %d were taken, the checkpoint is of %d", from+1, sum.Steps, m.Step)
		}
	}
}

// A run goes on with the batch of its checkpoint, unless another is asked for, which is
// refused.
func TestTheBatchOfACheckpoint(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Steps: 4, Ckpt: dir})
	s.ends()
	other := tiny()
	other.Batch = 8
	s = begin(t, Options{Train: other, Batch: true, Steps: 6, Ckpt: dir})
	if _, err := s.ends(); !isUse(err) || !strings.Contains(err.Error(), "--batch 16, asked for is --batch 8") {
		t.Errorf("%v", err)
	}
	s = begin(t, Options{Train: other, Steps: 6, Ckpt: dir, Check: true})
	s.checked(5)
	if m := hasCheckpoint(t, dir); m.Step != 6 || m.Data != 6*16 {
		t.Errorf("%+v", m)
	}
}

// A run whose losses are not those of the run it is compared with: here its learning
// rate, which goes with the checkpoint, is another than the one it is asked to have.
func TestACheckThatFails(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Steps: 4, Ckpt: dir, Ranks: 2})
	s.ends()
	other := tiny()
	other.Rate.Peak *= 3
	var text strings.Builder
	s = begin(t, Options{Train: other, Steps: 12, Ckpt: dir, Check: true, Ranks: 2, Summary: &text})
	sum, err := s.ends()
	if err == nil || isUse(err) || !strings.Contains(err.Error(), "check: the loss of step 5 is") || sum.Same == nil || *sum.Same {
		t.Errorf("%+v, %v", sum, err)
	}
	if !strings.Contains(text.String(), "failed: the losses of 8 steps differ by at most") {
		t.Error(text.String())
	}
}

// Every checkpoint is damaged: the run says so, and neither begins anew nor touches them.
func TestEveryCheckpointIsDamaged(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Steps: 8, Ckpt: dir, Every: 4})
	s.ends()
	for _, name := range []string{"rank-*.safetensors", "manifest*"} { // first the data alone, which only reading finds
		files, err := filepath.Glob(filepath.Join(dir, "step-*", name))
		if err != nil || len(files) == 0 {
			t.Fatalf("%v, %v", files, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)-3] ^= 0xff
			if err := os.WriteFile(f, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := contents(t, dir)
		s = begin(t, Options{Steps: 12, Ckpt: dir, Every: 4})
		_, err = s.ends()
		if err == nil || isUse(err) || !strings.Contains(err.Error(), "to begin from the seed") || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(s.story(), "from the seed, on") || strings.Contains(s.story(), "blank") {
			t.Errorf("%s: it began anew", name)
		}
		if after := contents(t, dir); !maps.Equal(before, after) {
			t.Errorf("%s: the folder had %d files and has %d", name, len(before), len(after))
		}
	}
}

// A rank that is stopped is known to be after the silence that it takes, not at once.
func TestWhenAStoppedRankIsKnown(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Steps: 100_000, Ranks: 3, Ckpt: dir, Every: 3})
	hasCheckpoint(t, dir) // so that all ranks are known to be at work
	pid := s.hurt(syscall.SIGSTOP, "rank", 1)
	s.await("resumed", "slot 1")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.await("epoch", ": 3 at work")
	s.stop()
	sum, err := s.ends()
	if err != nil || len(sum.Incidents) != 1 || sum.Incidents[0].Detect < 1000 || sum.Incidents[0].Resume < sum.Incidents[0].Detect {
		t.Errorf("%+v, %v", sum.Incidents, err)
	}
}

// A rank that is stopped when the run ends does not hold it up.
func TestARankIsStoppedInTheEnd(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, Options{Steps: 100_000, Ranks: 2, Ckpt: dir, Every: 3})
	hasCheckpoint(t, dir)
	s.hurt(syscall.SIGSTOP, "rank", 1)
	s.await("resumed", "slot 1")
	s.stop()
	began := time.Now()
	sum, err := s.ends()
	if err != nil || time.Since(began) >= saving { // the stopped rank was waited for
		t.Errorf("%+v, %v after %v", sum, err, time.Since(began))
	}
	if m := hasCheckpoint(t, dir); m.Step != int64(sum.Steps) || m.World != 1 {
		t.Errorf("the last checkpoint is of step %d and %d ranks, the run ended with %d", m.Step, m.World, sum.Steps)
	}
}

// Ranks of two tensors and two stages lose one of eight: the layout stays, with one
// replica and three spare ranks, until the eighth is back.
func TestALayoutStaysWhenARankGoes(t *testing.T) {
	cfg := tiny()
	cfg.Layout = train.Layout{TP: 2, PP: 2}
	dir := t.TempDir()
	s := begin(t, Options{Train: cfg, Ranks: 8, Check: true, Ckpt: dir, Every: 3, Keep: 2, Steps: 100_000})
	hasCheckpoint(t, dir)
	s.hurt(syscall.SIGSTOP, "rank", 7) // it is not started again
	s.await("layout", "dp 1, tp 2, pp 2 on 7 ranks, 3 spare")
	at := hasCheckpoint(t, dir).Step
	for m := hasCheckpoint(t, dir); m.Step <= at || m.World != 4; m = hasCheckpoint(t, dir) {
	}
	for _, p := range children() {
		if p.verb == "rank" && p.slot == 7 {
			if err := syscall.Kill(p.pid, syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}
	}
	s.await("layout", "dp 2, tp 2, pp 2 on 8 ranks")
	s.stop()
	if sum := s.checked(1); sum.Lost != 0 {
		t.Errorf("%+v", sum)
	}
}

// What is wrong with the options is said before anything starts.
func TestWrongOptions(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := tiny()
	bad.Layout.TP = 3
	for _, c := range []struct {
		name string
		o    Options
		says string
	}{
		{"ranks", Options{Ranks: -1}, "-1 ranks"},
		{"too many ranks", Options{Ranks: 1_000_000}, "1000000 ranks"},
		{"least", Options{Ranks: 2, Min: 3}, "at least 3 of 2 ranks"},
		{"time", Options{For: -1}, "below 0"},
		{"steps", Options{Steps: -1}, "below 0"},
		{"layout", Options{Train: bad}, "do not make whole replicas"},
		{"port", Options{Listen: busy.Addr().String()}, "--listen"},
		{"a file", Options{Ckpt: filepath.Join(file, "run")}, file},
		{"a scheme", Options{Ckpt: "ftp://place"}, "ftp"},
	} {
		s := begin(t, c.o)
		if _, err := s.ends(); !isUse(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want it to say %q", c.name, err, c.says)
		}
	}
	// Where any port will do, a busy one is no error.
	page := make(chan string, 1)
	s := begin(t, Options{Listen: busy.Addr().String(), Fallback: true, Ranks: 1, Steps: 1, Ready: func(p, _ string) { page <- p }})
	if _, err := s.ends(); err != nil {
		t.Error(err)
	}
	if at := <-page; at == "" || strings.Contains(at, busy.Addr().String()) {
		t.Errorf("the page is at %q", at)
	}
	if _, err := Transport("pigeon"); !isUse(err) || !strings.Contains(err.Error(), "shm, tcp") {
		t.Error(err)
	}
}

// mount gives a small file system of its own.
func mount(t *testing.T, flags uintptr, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestAFolderThatIsReadOnly(t *testing.T) {
	dir := mount(t, unix.MS_RDONLY, "size=1m")
	s := begin(t, Options{Ckpt: dir, Every: 1, Steps: 5})
	if _, err := s.ends(); !isUse(err) || !strings.Contains(err.Error(), "read-only") || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
}

// The disk is full: training goes on, and the checkpoints before are as they were. In the end the run fails with
// how many steps are not saved; with more room, a run from the last checkpoint takes them again.
func TestADiskThatIsFull(t *testing.T) {
	dir := mount(t, 0, "size=1m")
	var text strings.Builder
	s := begin(t, Options{Ckpt: dir, Every: 5, Steps: 60, Check: true, Summary: &text})
	s.await("error", "no space left", "training goes on")
	sum, err := s.ends()
	m := hasCheckpoint(t, dir)
	unsaved := 60 - int(m.Step)
	if err == nil || isUse(err) || !strings.Contains(err.Error(), fmt.Sprintf("%d steps are not saved", unsaved)) ||
		!strings.Contains(err.Error(), "no space left") {
		t.Errorf("%d steps are not saved, and the run ends with: %v", unsaved, err)
	}
	if sum.Unsaved != unsaved || !strings.Contains(text.String(), fmt.Sprintf("%d steps", unsaved)) || sum.Same == nil || !*sum.Same {
		t.Errorf("%d steps are not saved: %+v\n%s", unsaved, sum, &text)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	s = begin(t, Options{Ckpt: dir, Steps: int(m.Step) + 3, Check: true, Ranks: 2})
	s.checked(int(m.Step) + 1)
}
