package tune

import (
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

const logDir = "../../../shared/reference/fixtures/nccl-tests/"

func openLog(t testing.TB, name string) *os.File {
	t.Helper()
	f, err := os.Open(logDir + name)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the log %s is not beside this checkout", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// made gives points of a known model with noise of the given share and some
// outliers of twice the time.
func made(m cost.AlphaBeta, noise float64, ops ...sched.Collective) []Point {
	random := rand.New(rand.NewPCG(7, 7))
	var list []Point
	for _, op := range ops {
		for _, n := range []int{2, 4, 8} {
			for size := unit.Bytes(512); size <= 512*unit.MiB; size *= 2 {
				p := Point{Op: op, GPUs: n, Nodes: 1, Bytes: size}
				us := m.Micros(costOf(p)) * math.Exp(noise*random.NormFloat64())
				if noise > 0 && random.IntN(25) == 0 {
					us *= 2
				}
				p.Time = cost.Span(us)
				list = append(list, p)
			}
		}
	}
	return list
}

// TestCalibrateFindsWhatPointsWereMadeFrom, exactly without noise and within
// three standard errors with it, outliers and all.
func TestCalibrateFindsWhatPointsWereMadeFrom(t *testing.T) {
	for _, want := range bounded.First(1, []cost.AlphaBeta{{Launch: 5, Alpha: .8, Beta: 1e-3 / 350, Gamma: 1e-3 / 2000, Overlap: 1},
		{Launch: 8, Alpha: 1.2, Beta: 1e-3 / 40, Gamma: 1e-3 / 400, Overlap: .8},
		{Launch: 3, Alpha: 2, Beta: 1e-3 / 700, Gamma: 1e-3 / 3000, Overlap: 1.4}}...) {
		for _, noise := range []float64{0, .05} {
			c, err := Calibrate(made(want, noise, sched.AllReduce, sched.AllGather, sched.ReduceScatter))
			if err != nil {
				t.Fatal(err)
			}
			f := &c.Links[0]
			for _, v := range []struct {
				name  string
				got   Value
				want  float64
				least float64 // relative, besides the standard error
			}{{"launch", f.Launch, want.Launch, .03}, {"alpha", f.Alpha, want.Alpha, .03}, {"beta", f.Beta, want.Beta * 1e6, .03},
				{"gamma", f.Gamma, want.Gamma * 1e6, .1}, {"overlap", f.Overlap, want.Overlap, .03}} {
				if off := math.Abs(v.got.Best - v.want); off > 4*v.got.Error+v.least*v.want {
					t.Errorf("noise %g: %s is %v, made from %g", noise, v.name, v.got, v.want)
				}
				if noise > 0 && v.got.Error <= 0 {
					t.Errorf("%s has no error bar", v.name)
				}
			}
		}
	}
}

func TestCalibrateTheSameTwice(t *testing.T) {
	points := made(cost.AlphaBeta{Launch: 5, Alpha: .8, Beta: 1e-3 / 350, Gamma: 0, Overlap: 1}, .1, sched.AllReduce)
	a, err := Calibrate(points)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := Calibrate(points)
	if a.String() != b.String() {
		t.Errorf("%s\n%s", a, b)
	}
}

// TestCalibrateLog: the A100 log gives NVIDIA's published 232 GB/s, and a model
// that fits it.
func TestCalibrateLog(t *testing.T) {
	points := slices.DeleteFunc(notFitted(t), func(p Point) bool { return p.Op != sched.AllReduce })
	c, err := Calibrate(points)
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Link(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("bus %s\n%s", f.Bus(), c)
	if bus := float64(f.Bus()) / 1e9; math.Abs(bus/232-1) > .08 {
		t.Errorf("bus bandwidth %.1f GB/s, 232 published", bus)
	}
	if f.MedianError > .10 || f.P90Error > .35 {
		t.Errorf("errors %.3f and %.3f", f.MedianError, f.P90Error)
	}
	for _, p := range points {
		if p.Bytes == 64*unit.MiB && !p.InPlace {
			a, err := f.Answer(nil, p.Op, "auto", p.GPUs, p.Nodes, p.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if off := math.Abs(a.Time.Seconds()/p.Time.Seconds() - 1); off > .25 || len(a.Notes) > 0 {
				t.Errorf("64 MiB: %s, measured %s; %q", a.Time, p.Time, a.Notes)
			}
		}
	}
	if len(f.Notes) != 2 {
		t.Errorf("notes %q; one GPU count and one operation leave two constants open", f.Notes)
	}
	if _, err := c.Link(2); err == nil {
		t.Error("a log of one node answers for two")
	}
}

func TestReadLogs(t *testing.T) {
	for name, op := range map[string]sched.Collective{"8xA100-allreduce.log": sched.AllReduce,
		"8xA100-reducescatter.log": sched.ReduceScatter} {
		points, err := ReadNCCLTests(openLog(t, name))
		if err != nil {
			t.Fatal(err)
		}
		last := points[len(points)-1]
		for _, p := range points {
			if p.Op != op || p.GPUs != 8 || p.Nodes != 1 {
				t.Fatalf("%s: %+v", name, p)
			}
		}
		if last.Bytes != 8*unit.GiB || !last.InPlace {
			t.Errorf("%s: last point %+v", name, last)
		}
	}
	if _, err := ReadNCCLTests(openLog(t, "8xA100-alltoall.log")); err == nil || !strings.Contains(err.Error(), "all-to-all") {
		t.Errorf("an old log of all-to-all does not name itself: %v", err)
	}
	points, err := ReadNCCLTestsAs(openLog(t, "8xA100-alltoall.log"), sched.AllToAll)
	if err != nil {
		t.Fatal(err)
	}
	if p := points[len(points)-1]; p.Op != sched.AllToAll || p.Time != 33234*unit.Microsecond {
		t.Errorf("%+v", p)
	}
}

// newLog is a log as nccl-tests 2.13 and later write it, two hosts under MPI.
const newLog = `[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
[1,0]<stdout>:#
[1,0]<stdout>:# Using devices
[1,0]<stdout>:#  Rank  0 Group  0 Pid   1001 on     node-a device  0 [0000:07:00] NVIDIA H100 80GB HBM3
[1,0]<stdout>:#  Rank  1 Group  0 Pid   1002 on     node-b device  0 [0000:07:00] NVIDIA H100 80GB HBM3
node-a:1001:1001 [0] NCCL INFO Bootstrap : Using eth0
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    26.51    0.00    0.00      0    26.13    0.00    0.00      0
        1024           256     float     sum      -1    27.90    0.04    0.04      0      N/A     N/A     N/A    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.0191
`

func TestReadNewForm(t *testing.T) {
	points, err := ReadNCCLTests(strings.NewReader(newLog))
	if err != nil {
		t.Fatal(err)
	}
	want := []Point{
		{sched.AllReduce, 2, 2, 8, cost.Span(26.51), false}, {sched.AllReduce, 2, 2, 8, cost.Span(26.13), true},
		{sched.AllReduce, 2, 2, 1024, cost.Span(27.90), false},
	}
	if len(points) != len(want) {
		t.Fatalf("%+v", points)
	}
	for i := range want {
		if points[i] != want[i] {
			t.Errorf("%+v, want %+v", points[i], want[i])
		}
	}
	for from, op := range map[string]sched.Collective{
		"float     sum      -1    27.90": sched.AllReduce, "float     sum       0    27.90": sched.Reduce,
		"float    none       1    27.90": sched.Broadcast, "float    none      -1    27.90": sched.SendRecv,
	} {
		points, err := ReadNCCLTests(strings.NewReader(strings.ReplaceAll(newLog, "float     sum      -1    27.90", from)))
		if err != nil || points[len(points)-1].Op != op {
			t.Errorf("%q: %v %v, want %s", from, points, err, op)
		}
	}
	named, err := ReadNCCLTests(strings.NewReader("# Collective test starting: all_gather_perf\n" + newLog))
	if err != nil || named[0].Op != sched.AllGather {
		t.Errorf("a log that names its operation: %v %v", named, err)
	}
}

func TestBadLogs(t *testing.T) {
	head := newLog[:strings.Index(newLog, "           8 ")]
	for name, text := range map[string]string{
		"nothing":      "",
		"garbage":      "hello\nworld 1 2 3\n",
		"no header":    "8 2 float sum -1 26.5 0 0 0\n",
		"no ranks":     "#  size count type redop root time algbw busbw #wrong\n8 2 float sum -1 26.5 0 0 0\n",
		"time":         head + "8 2 float sum -1 fast 0 0 0\n",
		"negative":     head + "8 2 float sum -1 -5 0 0 0\n",
		"short row":    head + "8 2 float sum\n",
		"type":         head + "8 2 quad sum -1 5 0 0 0\n",
		"all-to-all?":  head + "8 1 float none -1 5 0 0 0\n",
		"only the top": head,
	} {
		if points, err := ReadNCCLTests(strings.NewReader(text)); err == nil {
			t.Errorf("%s is accepted: %+v", name, points)
		} else if name == "time" && !strings.Contains(err.Error(), "line 11") {
			t.Errorf("%s: %v does not name the line", name, err)
		}
	}
}

func TestReadPoints(t *testing.T) {
	points, err := ReadPoints(strings.NewReader("op,gpus,bytes,time_us\n# mine\nall-reduce,8,1MiB,42.5\nalltoall, 4, 512, 9\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(points) != 2 || points[0] != (Point{sched.AllReduce, 8, 1, unit.MiB, cost.Span(42.5), false}) || points[1].Op != sched.AllToAll {
		t.Errorf("%+v", points)
	}
	for _, bad := range []string{"", "op,gpus\n", "op,gpus,bytes,time_us\n", "op,gpus,bytes,time_us,color\n", "op,op,gpus,bytes,time_us\n",
		"op,gpus,bytes,time_us\nall-reduce,0,8,1\n", "op,gpus,bytes,time_us\nstir,2,8,1\n", "op,gpus,bytes,time_us\nall-reduce,2,8,0\n",
		"op,gpus,bytes,time_us\nall-reduce,2,many,1\n", "op,gpus,nodes,bytes,time_us\nall-reduce,2,3,8,1\n",
		"op,gpus,bytes,time_us\nall-reduce,2\n"} {
		if _, err := ReadPoints(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestCalibrationRoundTrip(t *testing.T) {
	points := made(cost.AlphaBeta{Launch: 5, Alpha: .8, Beta: 1e-3 / 350, Gamma: 0, Overlap: 1}, .1, sched.AllReduce)
	for _, p := range made(cost.AlphaBeta{Launch: 50, Alpha: 8, Beta: 1e-3 / 48, Gamma: 0, Overlap: .6}, .1, sched.AllReduce) {
		p.Nodes = 2
		points = append(points, p)
	}
	c, err := Calibrate(points)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Links) != 2 {
		t.Fatalf("%d links", len(c.Links))
	}
	back, err := ReadCalibration(strings.NewReader(c.String()))
	if err != nil {
		t.Fatal(err)
	}
	if back.String() != c.String() {
		t.Errorf("%s\nbecame\n%s", c, back)
	}
	if f, err := back.Link(2); err != nil || math.Abs(f.Model().Alpha-c.Links[1].Alpha.Best) > 1e-4 {
		t.Errorf("%v %v", f, err)
	}
	for _, bad := range []string{"", "hello", calHeader, calHeader + "\nlink sideways\n", calHeader + "\nlink inside\n",
		calHeader + "\nlink inside\nalpha 1 ± 1\nbeta x ± 1\n",
		calHeader + "\nlink inside\nalpha 1 ± 1\nalpha 1 ± 1\n",
		calHeader + "\nalpha 1 ± 1\n", calHeader + "\nlink inside\nalpha 1 ± 0\nbeta 1 ± 0\nwarp 9\n",
		calHeader + "\nlink inside\nalpha -1 ± 0\nbeta 1 ± 0\n",
		calHeader + "\nlink between\nalpha 1 ± 0\nbeta 1 ± 0\nlink inside\nalpha 1 ± 0\nbeta 1 ± 0\n"} {
		if _, err := ReadCalibration(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestCalibrateRefuses(t *testing.T) {
	one := Point{Op: sched.AllReduce, GPUs: 8, Nodes: 1, Bytes: 1024, Time: unit.Millisecond}
	alone := one
	alone.GPUs = 1
	negative := one
	negative.Bytes = -1
	for name, list := range map[string][]Point{"none": nil, "one": {one}, "one size": {one, one, one, one, one},
		"one GPU": {alone, alone, alone, alone, alone}, "negative": {negative}} {
		if _, err := Calibrate(list); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func FuzzReadNCCLTests(f *testing.F) {
	f.Add(newLog)
	f.Add("# nThread 1 nGpus 8\n# size count type redop time algbw busbw error time algbw busbw error\n 8 2 float sum 1 0 0 N/A 1 0 0 N/A\n")
	f.Add("#  Rank 0 Pid 1 on a device 0\n# size count type time\n8 1 half 5 0 0 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		points, err := ReadNCCLTests(strings.NewReader(text))
		if err == nil && len(points) == 0 {
			t.Error("no points and no error")
		}
		for _, p := range points {
			if p.GPUs < 1 || p.Nodes < 1 || p.Bytes < 0 || p.Time < 0 || p.Op == 0 {
				t.Errorf("%+v", p)
			}
		}
	})
}

func FuzzReadPoints(f *testing.F) {
	f.Add("op,gpus,nodes,bytes,time_us\nall-reduce,8,1,1MiB,42.5\n")
	f.Fuzz(func(t *testing.T, text string) {
		points, err := ReadPoints(strings.NewReader(text))
		if err == nil && len(points) == 0 {
			t.Error("no points and no error")
		}
		for _, p := range points {
			if p.GPUs < 1 || p.Nodes < 1 || p.Bytes < 0 || p.Time < 0 || p.Op == 0 {
				t.Errorf("%+v", p)
			}
		}
	})
}

func FuzzReadCalibration(f *testing.F) {
	f.Add(calHeader +
		"\n\nlink inside\nlaunch 4 ± 1 us\nalpha 1 ± 0.1\nbeta 2 ± 0\ngamma 0 ± 0\noverlap 1 ± 0\npoints 3\nsizes 8 16\ngpus 2 8\nerror 0.1 0.2\nnote hello there\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ReadCalibration(strings.NewReader(text))
		if err != nil {
			return
		}
		back, err := ReadCalibration(strings.NewReader(c.String()))
		if err != nil {
			t.Fatalf("%v: what was printed is not read:\n%s", err, c)
		}
		if back.String() != c.String() {
			t.Errorf("%s\nbecame\n%s", c, back)
		}
	})
}

// The error of a fit is that on points it has not seen: random times cannot be predicted, however well five constants fit seven of them.
func TestCalibrateReportsLeftOutErrors(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	var list []Point
	for i, size := range []unit.Bytes{1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 28, 1 << 30} {
		op := []sched.Collective{sched.AllReduce, sched.AllGather}[i%2]
		list = append(list, Point{Op: op, GPUs: 2 + 2*(i%3), Nodes: 1, Bytes: size, Time: cost.Span(1e3 * math.Exp(2*random.NormFloat64()))})
	}
	c, err := Calibrate(list)
	if err != nil {
		t.Fatal(err)
	}
	f := c.Links[0]
	var seen []float64
	for _, p := range list {
		seen = append(seen, math.Abs(f.Model().Micros(costOf(p))/p.Time.Microseconds()-1))
	}
	slices.Sort(seen)
	if in := seen[len(seen)/2]; f.MedianError <= in {
		t.Errorf("median error %.2f, and %.2f on the points of the fit itself", f.MedianError, in)
	}
	if _, err := Calibrate(list[:5]); err == nil || !strings.Contains(err.Error(), "5 points inside a node for 5 constants") {
		t.Errorf("as many constants as points: %v", err)
	}
}
