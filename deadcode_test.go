package main

import (
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// What no command reaches, and why it is kept. Each entry is the beginning of a
// path, or path:function.
var unreached = []struct{ what, why string }{
	// Packages that tests and pages are made with.
	{"internal/cases/", "worked figures; the test of docs/reference/tables/reference-cases.md computes them"},
	{"run/internal/member/simulation/", "10,000 machines in virtual time; makes the figures of docs/reference/tables/membership.md"},
	{"internal/bounded/", "limits of tests and of the processes that they start"},
	{"internal/store/", "an object store for tests"},
	{"internal/chrome/", "a browser, for tests of pages"},
	{"internal/conform/", "what every transport is tested with"},
	{"internal/differential/", "draws programs and compares their runs with the reference"},
	{"internal/ibsim/", "the InfiniBand simulator, for tests"},
	{"internal/libweft/", "builds the C library for tests"},
	{"internal/manifest/", "checks the files of deploy, for tests"},
	{"internal/mutant/", "breaks programs, for tests of the prover"},
	{"internal/nslab/", "hosts as network namespaces, for tests"},
	{"internal/reference/", "programs on plain slices: what runs are compared with"},
	{"internal/world/", "schedules of the runtime in virtual time"},

	// The library: Go programs call these, weft's own commands do not.
	{"run/comm/async.go", "calls that return a handle, for programs that overlap"},
	{"run/comm/handle.go:WaitAll", "calls that return a handle, for programs that overlap"},
	{"run/comm/onesided.go", "one-sided operations"},
	{"run/comm/tagged.go", "messages with tags, calls at once, prepared calls"},
	{"run/comm/folds.go", "reductions by functions, scans, locations"},
	{"run/comm/buffers.go:plain", "elements of reductions by functions"},
	{"run/comm/buffers.go:isPlain", "elements of reductions by functions"},
	{"run/comm/proof.go:ByMessages", "an option for programs that want no shared memory"},
	{"run/comm/queue.go:CausedBy", "an option of calls in callbacks; the C library uses it"},
	{"run/comm/queue.go:AtWait", "an option of started calls; the C library uses it"},
	{"run/comm/device/call.go", "collectives on memory of GPUs by name, for programs; commands make them as values"},
	{"run/comm/device/stage.go", "messages of a GPU's memory: the C library sends them"},
	{"run/comm/choice/", "measuring links on its own, for programs that keep what was measured"},
	{"run/transport/ucx/library.go:sent", "UCX calls it when a message has gone"},
	{"run/transport/ucx/library.go:received", "UCX calls it when a message has come"},
	{"run/transport/ucx/library.go:many", "calls UCX's progress, by its address"},
	{"run/coord/client.go:ParseEndpoints", "programs that have a coordinator's address as text"},
	{"run/coord/epoch.go", "programs that decide on epochs themselves, or read past ones"},
	{"run/coord/gather.go", "barriers and small values of an epoch's members, for programs without comm"},
	{"run/coord/worker.go:Client.Workers", "the registered workers, for tools and tests"},
	{"move/infer/infer.go:Answer", "what one process answers, for tests and programs that compare"},
	{"move/kv/", "the library of KV caches: locks, layouts and placement are for serving engines"},
	{"model/topo/diff.go", "what differs between two topologies"},
	{"model/topo/project.go", "a topology's fabric or hosts alone"},
	{"model/topo/catalog/claims.go:Claims", "figures of the field that are wrong, with the right ones"},
	{"model/topo/format/ncclview.go", "a topology as NCCL's search sees it"},
	{"view/draw/draw.go:Host", "one host's picture, for programs"},
	{"collective/verify/verify.go:Unrolled", "the proof without symmetry, which the one by rotation is held against"},
	{"run/train/box.go", "states from files that weft did not write"},
	{"run/train/checkpoint/checkpoint.go:Load", "a whole checkpoint in one process"},
	{"predict/tune/table/table.go", "reads a tuner's table; the plug-in of the C library does"},
	{"predict/tune/points.go:ReadNCCLTests", "logs of nccl-tests as points"},

	// A leader among the members, and members that join, catch up and leave by
	// messages: the simulation uses these. Hosts' lists come from the coordinator.
	{"run/internal/member/", "the machine's inputs and names that the simulation uses and the agents do not"},

	// Only tests call these.
	{"view/draw/svg/svg.go", "what a picture holds, for its tests"},
	{"run/launch/launch.go:Result.Code", "tests of launches"},
	{"run/reduce/", "the plain definitions that kernels are tested against"},
	{"predict/sim/failures/failures.go", "closed forms that the simulation is held against"},
	{"run/train/internal/mat/mat.go:path.String", "names of tests"},
	{"predict/tune/regions.go:band.String", "messages of tests"},
	{"predict/sim/sim.go:Collective", "most of what tests simulate is one program"},
	{"run/transport/witness/ledger.go:MemoryLedger", "worlds that tests part in virtual time"},
	{"run/transport/witness/ledger.go:memoryLedger", "worlds that tests part in virtual time"},
	{"run/transport/witness/witness.go:Memory", "worlds that tests part in virtual time"},
	{"predict/tune/simplex.go:minimize", "fits the constants that are committed; a test fits them again"},
	{"app/internal/up/drill.go:Drill.String", "messages of tests"},
	{"fabric/network/prove/prove.go:Net.failure", "tests follow packets one by one and hold real routers against them"},
	{"fabric/network/prove/prove.go:Net.FollowWithout", "tests follow packets one by one and hold real routers against them"},
	{"fabric/network/prove/prove.go:Net.Reach", "tests follow packets one by one and hold real routers against them"},
	{"fabric/network/prove/prove.go:Trip.String", "messages of tests"},
}

// Code that no command reaches is deleted, or named above.
func TestNoDeadCode(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute of a processor")
	}
	cmd := bounded.Within(t, bounded.Build, "go", "run", "golang.org/x/tools/cmd/deadcode", "./...")
	cmd.Env = append(os.Environ(), "GOGC=400") // it keeps nearly all that it allocates: a third less time
	var told strings.Builder
	cmd.Stderr = &told // Go tells there what it downloads on a new machine
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, told.String())
	}
	used := make([]bool, len(unreached))
lines:
	for line := range strings.Lines(string(out)) {
		// transport/tcp/nslab/nslab.go:41:6: unreachable func: New
		place, name, ok := strings.Cut(strings.TrimSpace(line), ": unreachable func: ")
		if !ok {
			t.Fatalf("deadcode printed %q", line)
		}
		file, _, _ := strings.Cut(place, ":")
		for i, x := range unreached {
			if strings.HasPrefix(file+":"+name, x.what) {
				used[i] = true
				continue lines
			}
		}
		t.Errorf("%s: no command reaches %s; delete it, or name it in deadcode_test.go with the reason", place, name)
	}
	for i, x := range unreached {
		if !used[i] {
			t.Errorf("deadcode_test.go keeps %q, of which everything is reached; take it off the list", x.what)
		}
	}
}
