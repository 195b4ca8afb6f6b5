# make quick  build, vet and the quick tests: under a minute once the cache is warm
# make test   what CI runs: static checks, other platforms, and every test
# make long   make test with every variant that it leaves out, race, proofs, drift, faults of hosts, fuzzing; two hours
# make race   the race detector over everything that shares memory between goroutines
# make schedules  seeded schedules of the runtime in virtual time, for as long as TIME says (10m); a failure names its seed
# make freezes  ranks that are stopped in calls and judged when they wake: TRIALS of them (500), from SEED on
# make differential  programs drawn at random, proven and run, for as long as TIME says; a failure names its seed
# make proofs  every algorithm proven at every count of ranks; about five minutes
# make lib    libweft.so, the library for C, Python and NCCL, into python/weft (needs a C compiler)
# make wheel  the Python package with the library in it, into dist, from what is on this machine
# make torch-suite  PyTorch's own distributed tests on weft and on Gloo, 2, 3 and 4 ranks, shm and tcp, as docs/reference/tables/torch-suite.md; half an hour
# make torch-files  PyTorch's other distributed test files on weft and on Gloo; SOURCE is the source of the installed PyTorch; an hour
# make cycles  2,000 communicators and groups made and destroyed in C, Python and PyTorch: descriptors, threads and memory must stay; ten minutes
# make torch-bench  times collectives of PyTorch over weft and over Gloo in turn; two minutes
# make dist   a release in dist/: static binaries for Linux, others for macOS, an image, man pages, completions, SBOM, wheel, checksums (VERSION=v1.2.3 names it)
# make bench  figures for docs/reference/performance.md; bench-sim is the simulator's part of it (ASTRA_RING: predict/sim/peer_test.go)
# make sim-table  processor time and peak memory of weft sim collective, by operation, fault and size, into docs/reference/tables/sim-scale.md; GPUS=1024 measures one size; minutes
# make synth-shares  what synthesised programs reach of their bounds, into docs/reference/tables/synthesis-shares.md; half an hour
# make bench-hosts  collectives over hosts made of namespaces beside Open MPI and Gloo, on one and two rails, and the simulator's word on them (LAYOUTS, SIZES); as root, about fifteen minutes
# make bench-canonical  what sums in the canonical order cost, in shared memory, over tcp and over hosts made of namespaces; as root, about five minutes
# make bench-busy  collectives under a quota, beside busy processes and with more ranks than processors, beside Open MPI and Gloo: medians and 99th percentiles; as root, about six minutes
# make accuracy  refits the predictions of NCCL to the measured points and writes docs/reference/accuracy.md; about two minutes
# make plan-score  prints how well plans are predicted, in one place
# make plan-parsers  shows emitted files to the frameworks' own parsers, whose sources are in WEFT_FRAMEWORKS
# make plan-accuracy  fits the factors of plans to measured steps again and writes docs/reference/plan-accuracy.md; about a minute
# make search-times  measures how long weft plan searches and writes docs/reference/tables/plan-search.md; two minutes
# make serve-accuracy  predicts measured latencies of engines and writes docs/reference/serve-accuracy.md; about five minutes
# make doctor-score  prints precision, recall and calibration of weft doctor on its labelled log bundles
# make drift  a lab with real routers, and every fault that weft net check must name planted in it
# make drills  breaks the network of a lab in every way that weft lab drill knows, and measures
# make gpu    on a machine with a GPU: kernels against reduce, collectives, speed with and without MPS; docs/how-to/gpu.md
# make consumers  five designs emitted and read back whole by netplan, FRR, name and DHCP servers
# make lab-model  random fabrics of every family in labs, whole and with eight faults each, held against the model of weft net prove (FABRICS, SEED, LABS at a time); as root, half an hour
# make lab-kernel  labs with bonded hosts and with VRFs in an emulated kernel (QEMU and Debian's kernel, unpacked without being installed); as root, about ten minutes
# make verdicts  what slurmctld (SLURM='trixie forky' for 24.11 and 26.05, too), and with KUBE_CRDS the API server's libraries, say of every example, in one table
# make lab-model-vrf  random fabrics with VRFs held against the model in the emulated kernel (SEED); as root, a quarter of an hour
# make lab-scale  labs of 6, 64 and 200 routers, measured
# make watch-drills  breaks real ranks in every way there is and prints what weft watch named (TRIALS, HEALTHY); about fifteen minutes
# make launcher-drills  every fault, a lost node among them, in jobs of weft run, torchrun, mpirun and Slurm: who was named, when, and who falsely; as root on a quiet machine, about ten minutes
# make watch-hour  an hour of healthy running next to 40 busy processes at the lowest priority (HOUR, HOGS): no alarm may come
# make watch-load  a server of weft watch under the reports of 10,000 hosts, measured
# make xfer-faults  every fault of transfers between processes, as docs/reference/tables/transfer-faults.md; about ten minutes
# make xfer-reclaims  owners that reclaim under late readers, RECLAIM on each path (1h); counts mixed reads
# make bench-xfer  transfers as ratios to memcpy, bare sockets (with checksums and without), fio and the object client, interleaved (WEFT_S3 is s3://BUCKET of a store); on a quiet machine, three minutes
# make kv-restart  a cache service with a full slab of SIZE (10GiB) started again after it ended and after it was killed; three minutes, and as much disk
# make tenant-attacks  what a hostile tenant tries against 'weft kv serve', with results, as docs/reference/tables/tenants.md
# make xfer-store  transfers with a real object store (versitygw, built here; WEFT_VERSITYGW names one that is) whose answers are broken on purpose
# make studio-show  weft studio in a browser: tasks with clicks and seconds, frame times, sizes, load times, memory, and screenshots in PICTURES; writes docs/reference/tables/studio.md; five minutes on a quiet machine
# make gallery  opens the ten pages of weft studio's gallery from disk, and takes their pictures for the docs; five minutes
# make fuzz   every fuzz target for a minute each (FUZZTIME=10s to shorten)
# make lint   gofmt, go vet and staticcheck
# make cross  compiles, links and vets for macOS and for Linux on arm64; make test type-checks for both instead
comma    := ,
GO       ?= go
FUZZTIME ?= 60s
VERSION  ?=
# Left out of make quick: packages whose tests start processes, browsers or clusters, or take more than 5 s of a processor.
SLOW      = weft capi comm elastic up cli bench coord launch transport cases draw reduce collective/verify collective/algo model/topo/format sim run/internal/member/simulation train ckpt xfer web lab fabric/network/emit synth tune design evidence
QUICK     = $(shell $(GO) list ./... | grep -v -e /internal/ -e /comm/ -e /transport/ -e /elastic/ $(foreach p,$(SLOW),-e '/$(p)$$'))
# Packages with goroutines or shared memory. The others are pure values.
RACE     ?= run/transport run/comm run/coord run/ckpt run/elastic run/launch run/internal run/train app/internal view/web observe move
PACKAGES := ibsim-utils opensm infiniband-diags chromium gcc g++ openmpi-bin libopenmpi-dev mpich libmpich-dev libgloo-dev python3-torch python3-mpi4py mypy libucx0 ucx-utils \
	netplan.io frr dnsmasq-base kea-dhcp4-server bind9-utils slurmctld slurmd slurm-client lldpd bird2 nftables prometheus

.PHONY: gofmt vet staticcheck torch-suite torch-files torch-bench cycles quick test long lib race schedules freezes host-faults differential proofs dist cross bench bench-sim sim-table synth-shares synth-hosts bench-comm bench-hosts bench-canonical bench-busy accuracy plan-accuracy drift drills lab-scale consumers watch-drills watch-load gpu xfer-faults xfer-reclaims xfer-store bench-xfer kv-restart tenant-attacks fuzz lint packages build

quick:
	$(GO) build ./...
	$(GO) vet ./...
	$(GO) test -vet=off -short -timeout 2m $(QUICK)

# Most of what a fresh clone compiles are dependencies. So that this takes little of a processor,
# - they are compiled once for all: without cgo, as releases are, for vet, for tests and for what tests build. Only the library
#   for C, which does not have most of them, is compiled apart, before the tests that use it;
# - the larger ones are compiled without optimisation, in 0.6 of the time. make long compiles all of them as releases are;
# - binaries of tests have no symbols: linking them takes half as long;
# - compilers and checkers keep nearly all that they allocate: collecting it seldom saves a third of their time.
PLAIN = go.etcd.io google.golang.org go.opentelemetry.io golang.org/x/net github.com/chromedp github.com/minio github.com/tinylib \
	github.com/vishvananda github.com/prometheus github.com/grpc-ecosystem github.com/johannesboyne github.com/hashicorp github.com/miekg
FAST  = -ldflags=-s -gcflags=all=-dwarf=false $(PLAIN:%='-gcflags=%/...=-dwarf=false -N -l')
quick test: export CGO_ENABLED = 0
quick test: export GOFLAGS := $(shell $(GO) env GOFLAGS) $(FAST)
quick test: export GOGC = 400

# Packages of Debian come while vet compiles. Then tests of processes, hosts and browsers, which mostly wait for each other, run
# before everything that only computes: that has what they leave of the processors, so that they are not late because of it.
test:
	$(MAKE) -j 3 packages gofmt vet
	if command -v cc >/dev/null; then $(MAKE) lib; fi
	$(MAKE) -j 3 NICE='nice -n 19' staticcheck real-tests pure-tests
	if command -v cc >/dev/null; then $(MAKE) race-core; fi

# Nothing is run twice: a test that passes only sometimes is a bug, in the test or in weft.
REAL  = ./app/... ./capi/... ./fabric/lab/... ./move/... ./observe/... ./run/... ./view/...
TESTS = $(GO) test -vet=off -parallel 4 -timeout 40m -p 2
.PHONY: real-tests pure-tests
real-tests:
	$(TESTS) $(REAL)

pure-tests:
	$(NICE) $(TESTS) $(filter-out $(shell $(GO) list $(REAL)),$(shell $(GO) list ./...))

# What the run side shares between goroutines and processes, under the race detector: the parts that are quick under it. make race has
# all of them.
RACE_CORE = run/comm/internal/... run/transport/auth run/transport/mem run/transport/wait run/transport/witness \
	run/transport/internal/... run/transport/wire run/transport/tcp/internal/... run/internal/member run/lives run/elastic
.PHONY: race-core
race-core:
	CGO_ENABLED=1 $(GO) test -vet=off -race -short -timeout 10m $(RACE_CORE:%=./%)

# Everything there is: tests try all counts of ranks, layouts and moments of a death instead of a choice of them.
long: packages lint cross
	WEFT_TEST_LONG=1 $(GO) test -count=1 -timeout 60m ./...
	$(MAKE) race proofs drift host-faults
	$(MAKE) schedules differential TIME=10m
	$(MAKE) fuzz FUZZTIME=10s

# PYTHON is one with PyTorch.
PYTHON ?= /usr/bin/python3
torch-suite: lib
	PYTHONPATH=python $(PYTHON) python/tests/torch_suite.py --compare --out docs/reference/tables/torch-suite.md

torch-files: lib
	PYTHONPATH=python $(PYTHON) python/tests/torch_files.py --source $(SOURCE) --table

cycles:
	WEFT_TEST_LONG=1 $(GO) test -count=1 -timeout 20m -v -run 'Cycles$$' ./capi

torch-bench: lib
	PYTHONPATH=python $(PYTHON) python/bench_torch.py
	WEFT_TRANSPORT=tcp PYTHONPATH=python $(PYTHON) python/bench_torch.py
	PYTHONPATH=python $(PYTHON) python/bench_torch.py -n 4
	PYTHONPATH=python $(PYTHON) python/bench_torch.py --ddp

# One part after another, so that they can be run one by one: make race RACE=comm. Tests that take long under the detector are
# left out by -short.
race:
	@bad=; for p in $(RACE); do $(GO) test -race -short -timeout 20m ./$$p/... || bad="$$bad $$p"; done; [ -z "$$bad" ] || { echo "parts that failed:$$bad"; exit 1; }

# New schedules of the runtime in virtual time, from a seed that is printed.
TIME ?= 10m
schedules:
	$(GO) test -count=1 -timeout 0 -run 'TestSchedules$$|TestNeverTwoWorlds' -v ./run/comm -args -schedules.time=$(TIME) -schedules.from=$$(date +%s)000

# Everything that runs no ranks works on macOS; the rest builds and says that it takes Linux.
cross:
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) build -trimpath -ldflags '-s -w' -o /dev/null .
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) vet .
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) build -trimpath -ldflags '-s -w' -o /dev/null .

# The only part that is built with cgo. PYTHONPATH=python is enough to use it from Python. A release stamps its version with STAMP.
LIB = python/weft/libweft.so

lib:
	CGO_ENABLED=1 $(GO) build -buildmode=c-shared -tags libweft -trimpath -ldflags '-s -w $(STAMP)' -o $(LIB) ./capi

gpu:
	CGO_ENABLED=0 $(GO) build -o bin/gpu/weft .
	CGO_ENABLED=0 $(GO) test -c -o bin/gpu/cuda.test ./run/gpu/cuda
	run/gpu/check bin/gpu

.PHONY: wheel
wheel: lib
	python3 python/wheel.py -o dist $(if $(VERSION),--version $(VERSION))

dist:
	$(GO) run ./internal/dist -version "$(VERSION)" -o dist

# No service is started by installing it: a rule for that stands while packages come, where there is none.
# As root on Debian the outside parts that tests use are installed; elsewhere, and where one cannot be had, those tests skip
# and say why.
packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s $(PACKAGES) >/dev/null 2>&1; then \
		[ -e /usr/sbin/policy-rc.d ] || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d; trap 'rm -f /usr/sbin/policy-rc.d' EXIT; }; \
		apt-get update -qq; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null || \
		for p in $(PACKAGES); do \
			dpkg -s $$p >/dev/null 2>&1 || apt-get install -y -qq --no-install-recommends $$p >/dev/null || echo "$$p cannot be installed: tests that need it skip"; \
		done; \
	fi

lib cross vet staticcheck: export GOGC = 400

lint: gofmt vet staticcheck

gofmt:
	@test -z "$$(gofmt -l .)" || { echo "not gofmt'd:"; gofmt -l .; exit 1; }

vet:
	$(GO) vet ./...

staticcheck:
	$(NICE) $(GO) run honnef.co/go/tools/cmd/staticcheck ./...

accuracy:
	$(GO) test ./predict/tune -update

# Where the predictions stand, in one place: errors by family, memory, verdicts, coverage.
.PHONY: plan-score
plan-score:
	$(GO) test -count=1 -v ./predict/plan -run 'Score|Interval|Fit|BloomMemory|MemoryOf|Published'

# Emitted files read by Accelerate's, DeepSpeed's and torchtitan's own parsers: WEFT_FRAMEWORKS has their sources as accelerate, deepspeed
# and torchtitan (v0.2.2). Needs python3 with pydantic and yaml, neither torch nor a GPU.
.PHONY: plan-parsers
plan-parsers:
	@test -n "$(WEFT_FRAMEWORKS)" || { echo "make plan-parsers: set WEFT_FRAMEWORKS to a folder with accelerate, deepspeed and torchtitan" >&2; exit 2; }
	$(GO) test -count=1 -v ./predict/plan -run 'FrameworkParsers|EmittedFiles'

.PHONY: doctor-score
doctor-score:
	SHOW_HELD=1 $(GO) test -count=1 -v ./observe/doctor -run 'TestLabelledCases|TestMeasured'

plan-accuracy:
	$(GO) test ./predict/plan -run Update -count=1 -update
	$(GO) test ./predict/plan -run Outside -count=1 -update

.PHONY: search-times
search-times:
	$(GO) test ./predict/plan -run SearchTimes -count=1 -v -timeout 30m -update

.PHONY: serve-accuracy
serve-accuracy:
	$(GO) test ./predict/sim/serve -run Update -count=1 -timeout 30m -update

bench: bench-sim
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench . -benchtime 3x ./model/topo/...
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench 'Table|Threshold' -benchtime 1x ./run/reduce

# ASTRA_RING names drivers of ASTRA-sim's network core to be run in turn with ours; predict/sim/peer_test.go says what they are.
sim-table:
	WEFT_SIM_TABLE=$(or $(GPUS),1024$(comma)16384$(comma)131072) $(GO) test -count=1 -timeout 3h -run '^TestTable$$' -v ./predict/sim

synth-shares:
	WEFT_SYNTH_SHARES=1 $(GO) test -count=1 -timeout 3h -run '^TestShares$$' -v ./predict/sim

# Synthesised programs on four namespaces with unequal links, predicted and measured side by side; as root, minutes.
synth-hosts: build
	app/internal/bench/fit/unequal ./weft --size 1MiB..4MiB --turns 3

bench-sim:
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench . -benchtime 5x ./predict/sim/...
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench Search -benchtime 1x ./predict/plan

# Collectives beside Open MPI, MPICH, Gloo and the limit of the memory; about five minutes.
bench-comm: packages build
	./weft bench --compare all-reduce -n 2,4,8 --cpu
	./weft bench --compare all-reduce -n 2,4,8 --transport tcp --cpu
	./weft bench --compare reduce-scatter all-gather broadcast reduce all-to-all gather scatter send-recv barrier -n 2,8 --sizes 8,256K,16M

# The tables of docs/reference/tables/collectives-hosts.md: what the cores can do, then networks of a stated rate; and what was simulated of it.
LAYOUTS ?= 2x1,2x2,2x4,2x8,4x1,4x2,4x4,8x1,8x2
SIZES   ?= 8,1K,32K,1M,16M,64M
HOSTOPS  = all-reduce all-gather reduce-scatter all-to-all broadcast
bench-hosts: packages build
	./weft bench --compare $(HOSTOPS) --namespaces $(LAYOUTS) --sizes $(SIZES) --rounds 5 --batch 5ms
	./weft bench --compare $(HOSTOPS) --namespaces 2x1,2x4 --rate 2Gb/s --sizes $(SIZES) --rounds 3 --batch 5ms
	./weft bench --compare $(HOSTOPS) --namespaces 2x1,2x4 --rate 2Gb/s --rails 2 --sizes $(SIZES) --rounds 3 --batch 5ms
	./weft bench --predict $(HOSTOPS) --namespaces 2x1,2x2,2x4,4x2 --rate 1Gb/s -b 8 -e 8M -f 32 --batches 3

# What canonical sums cost, a table of docs/reference/tables/hosts.md; as root, about five minutes.
CANONICAL = --compare --canonical all-reduce reduce-scatter reduce --sizes 8,1K,32K,256K,1M,16M --rounds 9 --batch 5ms
bench-canonical: packages build
	./weft bench $(CANONICAL) -n 2,4
	./weft bench $(CANONICAL) -n 2,4 --transport tcp
	./weft bench $(CANONICAL) --namespaces 2x2,4x1,2x4

# The tables of docs/reference/tables/collectives-busy.md: a quota, busy processes, and ranks that outnumber the processors; as root, about six minutes.
BUSY  = --sizes 8,256K,8M --rounds 3 --batch 30ms
CORES = $(shell nproc)
HALF  = $(shell expr $(CORES) / 2)
bench-busy: packages build
	for how in "--quota 50% -n $(CORES)" "--hogs $(CORES) -n $(CORES)" "--hogs $$((2*$(CORES))) -n $(CORES)" "-n $$((2*$(CORES)))" "-n $$((4*$(CORES)))"; do for t in shm tcp; do \
		echo "## $$how, $$t"; ./weft bench --compare --spread $$how --transport $$t $(BUSY) || exit 1; done; done
	for how in "--quota 50% --namespaces 2x$(HALF)" "--hogs $(CORES) --namespaces 2x$(HALF)" "--hogs $$((2*$(CORES))) --namespaces 2x$(HALF)" "--namespaces 2x$(CORES)" "--namespaces 2x$$((2*$(CORES)))"; do \
		echo "## $$how, mixed"; ./weft bench --compare --spread $$how $(BUSY) || exit 1; done

# Every fault of hosts and of the links between them, as docs/reference/tables/host-faults.md; needs root, about four minutes.
host-faults:
	$(GO) test ./run/comm -run TestHostFaults -hostfaults -count=1 -timeout 30m -v

# TRIALS ranks are frozen in calls, and judged when they wake. SEED is that of the first trial.
TRIALS ?= 500
freezes:
	WEFT_TEST_FREEZES=$(TRIALS) WEFT_TEST_SEED=$(or $(SEED),1) $(GO) test ./run/comm -run TestWokenRanks -count=1 -timeout 0 -v

# SEED begins where an earlier run did.
differential:
	$(GO) test ./internal/differential -run TestProvenIsWhatRuns -count=1 -v -timeout 0 -time $(TIME) $(if $(SEED),-seed $(SEED))

# Proves every algorithm at every count of ranks up to 33, and large ones; about five minutes.
proofs:
	$(GO) test ./collective/algo -count=1 -timeout 30m -long

# Every planted fault in a lab with real routers; about ten minutes, as root.
drift:
	$(GO) test ./fabric/lab -run TestLab/drift -count=1 -v -lab.all -timeout 30m

# Labs of 6, 64 and 200 routers started and measured, for the table in docs/reference/tables/lab.md; about two minutes, as root.
lab-scale:
	$(GO) test ./fabric/lab -run TestScale -count=1 -v -lab.scale -timeout 20m

# FABRICS random fabrics from SEED on, LABS at a time; about a minute each.
FABRICS ?= 210
LABS    ?= 8
.PHONY: lab-model lab-kernel verdicts
lab-model:
	$(GO) test ./fabric/lab -run TestModelAgreesWithFRR -count=1 -v -timeout 0 -parallel $(LABS) -lab.fabrics $(FABRICS) $(if $(SEED),-lab.from $(SEED))

lab-kernel: build
	CGO_ENABLED=0 $(GO) run ./internal/labkernel -- bash internal/labkernel/eslag.sh ./weft
	CGO_ENABLED=0 $(GO) run ./internal/labkernel -- bash internal/labkernel/vrf.sh ./weft

# Random fabrics with VRFs, FABRICS from SEED on, held against the model in the emulated kernel; about five minutes each.
.PHONY: lab-model-vrf
lab-model-vrf:
	CGO_ENABLED=0 $(GO) test -c -o fabric/lab/lab.test ./fabric/lab
	cd fabric/lab && CGO_ENABLED=0 $(GO) run ../../internal/labkernel -- ./lab.test -test.run TestModelAgreesWithFRR -test.v -test.timeout 0 -test.parallel 1 -lab.vrfs -lab.fabrics $(or $(FABRICS_VRF),3) -lab.from $(or $(SEED),1)

# SLURM names Debian releases whose slurmctld judges, too: SLURM='trixie forky' has 24.11 and 26.05. They are unpacked below
# SLURM_DIR; as root.
SLURM     ?=
SLURM_DIR ?= /var/tmp/weft-slurm
space     := $(subst ,, )
verdicts:
	for r in $(SLURM); do CGO_ENABLED=0 $(GO) run ./internal/debroot $$r $(SLURM_DIR)/$$r slurmctld slurm-client || exit 1; done
	$(GO) test ./fabric/network/emit -run TestVerdicts -count=1 -v -timeout 30m -emit.verdicts -emit.slurm '$(subst $(space),$(comma),$(addprefix $(SLURM_DIR)/,$(SLURM)))'

# Five designs emitted, and every file of theirs read by its consumer; about ten minutes.
consumers:
	$(GO) test ./fabric/network/emit -run TestExamplesAreUnderstood -count=1 -timeout 40m -emit.all

# Every drill, with ranks of weft at work; about three minutes, as root.
drills: build
	./weft lab up examples/lab.yaml --name drills
	./weft lab drill drills; code=$$?; ./weft lab down drills; exit $$code

# The table of docs/reference/tables/watch.md: faults over real processes, and a day of healthy running in virtual time.
TRIALS  ?= 5
HEALTHY ?= 10m
watch-drills:
	CGO_ENABLED=0 $(GO) run . watch drills --trials $(TRIALS) --healthy $(HEALTHY)
	WEFT_TEST_HOURS=24 $(GO) test -count=1 -timeout 30m -run TestHealthyDay -v ./observe/watch

.PHONY: launcher-drills watch-hour
launcher-drills: packages
	@log=$$(mktemp) && trap 'rm -f "$$log"' EXIT; \
		WEFT_TEST_LONG=1 $(GO) test -count=1 -v -timeout 40m -run 'TestBrokenUnderOtherLaunchers|TestStarvedRankIsNotDead|TestLostNode' ./observe/watch/drill >"$$log" 2>&1; code=$$?; \
		[ $$code = 0 ] || cat "$$log"; grep -hE '^ +\|' "$$log" | sed 's/^ *//'; exit $$code

HOUR ?= 1h
HOGS ?= 40
watch-hour: build
	nice -n 19 ./weft watch drills --faults none --healthy $(HOUR) --hogs $(HOGS)

watch-load:
	CGO_ENABLED=0 $(GO) build -o .weft-load . && ./.weft-load watch load --hosts 10000 --series 200 --every 10s --for 60s; rm -f .weft-load
# SEED draws other moments of the faults.
xfer-faults:
	$(GO) test ./move/xfer -run TestFaultMatrix -count=1 -v -timeout 30m -xfer.faults $(if $(SEED),-xfer.seed $(SEED))

# RECLAIM is how long each path takes: an hour by default, nine hours in all.
RECLAIM ?= 1h
xfer-reclaims:
	$(GO) test ./move/xfer -run TestReclaimAgainstLateReaders -count=1 -v -timeout 0 -xfer.reclaims $(RECLAIM)

ROUNDS ?= 9
BENCH_XFER = bin/weft xfer bench --compare --no-peers --rounds $(ROUNDS)
bench-xfer:
	CGO_ENABLED=0 $(GO) build -o bin/weft .
	@for op in READ WRITE; do \
		run() { echo "== $$op $$*"; $(BENCH_XFER) --op_type $$op "$$@" | grep -E '^[0-9]|by theirs'; } && \
		run --path shm --start_block_size 1M --max_block_size 16M --num_iter 200 && \
		run --path tcp --start_block_size 4M --max_block_size 16M && \
		run --path tcp --start_block_size 4M --max_block_size 16M --no-checksums && \
		run --backend POSIX --start_block_size 1M --start_batch_size 16 && \
		run --backend OBJ --start_block_size 8M --num_iter 20 $(if $(WEFT_S3),--store $(WEFT_S3)) || exit 1; \
	done

SIZE ?= 10GiB
kv-restart:
	CGO_ENABLED=0 $(GO) build -o bin/weft .
	WEFT_PROGRAM=bin/weft python3 python/tests/kv_restart.py $(SIZE)

tenant-attacks:
	@out=docs/reference/tables/tenants.md && log=$$(mktemp) && trap 'rm -f "$$log"' EXIT && { $(GO) test -count=1 -v -run TestTenants ./app/cli >"$$log" || { cat "$$log"; exit 1; }; } && \
	{ printf '# What a hostile tenant tries\n\nMade by:\n\n    make tenant-attacks\n\n[Tenant isolation](../kv.md#tenant-isolation) says what holds. Every line is an attempt against a running\n`weft kv serve`, made next to a legitimate one that succeeds; CI runs all of them.\n\n| attempt | result |\n|---|---|\n' && \
	sed -n 's/.*attack \(|.*\)/\1 |/p' "$$log" | sort -u; } >"$$out"

# Building the store takes three minutes of a processor.
VERSITYGW ?= v1.8.0
xfer-store:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && GOBIN=$$dir $(GO) install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW) && \
		WEFT_VERSITYGW=$$dir/versitygw $(GO) test ./move/xfer ./move/kvcache -run Store -count=1 -v -timeout 10m

fuzz:
	@set -e; for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p; \
		done; \
	done

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o weft .

# What a reader of weft studio sees and waits for, as tables. Screenshots of every sample, and of every page of the gallery by light, dark
# and on a phone, go to PICTURES. Frame times are next to those of a page that stands still on the same machine.
PICTURES ?= $(CURDIR)/bin/studio
.PHONY: studio-show gallery
studio-show:
	@mkdir -p $(PICTURES)
	@WEFT_TEST_LONG=1 WEFT_TEST_PICTURES=$(PICTURES) $(GO) test -count=1 -timeout 60m -v ./app/internal/studio \
		-run 'TestInABrowser|TestMailedFile|TestFrames|TestPictures|TestGalleryFiles' >$(PICTURES)/log 2>&1; failed=$$?; \
		for what in task frames file memory; do echo; sed -n "s/^ *[a-z_]*\.go:[0-9]*: \($$what: \)/\1/p" $(PICTURES)/log; done; \
		grep -e '^ *--- FAIL' $(PICTURES)/log; ls $(PICTURES)/*.png | wc -l | sed 's/$$/ screenshots/'; exit $$failed
	@WEFT_TEST_STUDIO_LOG=$(PICTURES)/log $(GO) test -count=1 -run TestMeasuredInDocs ./app/internal/studio >/dev/null && echo wrote docs/reference/tables/studio.md

gallery:
	@mkdir -p $(PICTURES)
	WEFT_TEST_PICTURES=$(PICTURES) $(GO) test -count=1 -timeout 30m -v -run TestGalleryFiles ./app/internal/studio
	UPDATE=1 $(GO) test -count=1 -run TestGalleryInDocs ./app/internal/studio
