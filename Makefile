# make test   what CI runs: static checks and every test
# make bench  figures for docs/performance.md; bench-sim is the simulator's part of it (ASTRA_RING: sim/peer_test.go)
# make fuzz   every fuzz target for a minute each (FUZZTIME=10s to shorten)
# make lint   go vet and staticcheck
GO       ?= go
FUZZTIME ?= 60s
PACKAGES := ibsim-utils opensm infiniband-diags chromium gcc g++ openmpi-bin libopenmpi-dev mpich libmpich-dev libgloo-dev python3-torch

.PHONY: test bench bench-sim bench-comm fuzz lint packages build

test: packages lint
	$(GO) test -timeout 15m ./...

# As root on Debian the outside parts that tests use are installed; elsewhere, and where one cannot be had, those tests skip
# and say why.
packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s $(PACKAGES) >/dev/null 2>&1; then \
		apt-get update -qq; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null || \
		for p in $(PACKAGES); do \
			dpkg -s $$p >/dev/null 2>&1 || apt-get install -y -qq --no-install-recommends $$p >/dev/null || echo "$$p cannot be installed: tests that need it skip"; \
		done; \
	fi

lint:
	@test -z "$$(gofmt -l .)" || { echo "not gofmt'd:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

bench: bench-sim
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench . -benchtime 3x ./topo/...
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench 'Table|Threshold' -benchtime 1x ./reduce

# ASTRA_RING names drivers of ASTRA-sim's network core to be run in turn with ours; sim/peer_test.go says what they are.
bench-sim:
	GOMAXPROCS=1 $(GO) test -run '^$$' -bench . -benchtime 5x ./sim/...

# Collectives beside Open MPI, MPICH, Gloo and the limit of the memory; about five minutes.
bench-comm: packages build
	./weft bench --compare all-reduce -n 2,4,8 --cpu
	./weft bench --compare all-reduce -n 2,4,8 --transport tcp --cpu
	./weft bench --compare reduce-scatter all-gather broadcast reduce all-to-all gather scatter send-recv barrier -n 2,8 --sizes 8,256K,16M

fuzz:
	@set -e; for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p; \
		done; \
	done

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o weft .
