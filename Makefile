# Two commands are enough on a fresh machine: make demo, make test.

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: help demo test lint build man clean bench-proxy torture mutants image e2e e2e-smoke bench profile

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Bill 500 customers twice: the naive way, and with Duesday (about a minute)
	@hack/setup
	@$(GO) run ./internal/demo

test: ## Install what is missing, then run all tests with the race detector
	@hack/setup test
	CGO_ENABLED=1 $(GO) test -race ./...

lint: ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "run gofmt -w on the files above" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) -C e2e vet ./...
	$(GO) -C bench/river vet ./...

build: ## Build bin/duesday
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/duesday ./cmd/duesday

man: ## Write the man pages to dist/man
	$(GO) run -ldflags "-X main.version=$(VERSION)" ./cmd/duesday man --dir dist/man

image: ## Write the container image to dist/duesday.tar, without a container engine
	$(GO) run ./internal/image/cmd/image -o dist/duesday.tar -tag duesday:$(VERSION) -version $(VERSION)

# Tests wait more than they work: more of them than cores can run side by side.
e2e: ## Test on a real Kubernetes (root on Debian, or KUBECONFIG=…; the first time it builds Kubernetes, ten minutes or more)
	@hack/setup
	cd e2e && $(GO) test ./... -count=1 -parallel 6 -timeout 80m

e2e-smoke: ## The heart of it: scheduled run, killed leader, manual rerun, helm install
	@hack/setup
	cd e2e && $(GO) test . -run TestSmoke -count=1 -parallel 6 -timeout 60m

clean: ## Remove what make built
	rm -rf bin dist

bench-proxy: ## Measure what the spend-cap proxy costs, beside direct calls
	@hack/setup
	$(GO) test -run '^$$' -bench '^BenchmarkProxy$$' -benchtime 1x ./spendcap

torture: ## Crash schedules against the real binary: TORTURE_SCHEDULES=n, or TORTURE_SEED=s to replay one
	@hack/setup
	@TORTURE_SCHEDULES=$(TORTURE_SCHEDULES) TORTURE_SEED=$(TORTURE_SEED) $(GO) run ./internal/torture

mutants: ## Make one mistake after another and print which test notices it (about ten minutes)
	@hack/setup
	@MUTANTS=$(MUTANTS) MUTANTS_SCHEDULES=$(MUTANTS_SCHEDULES) $(GO) run ./internal/mutants

bench: ## Measure speed beside what else there is: all figures, or BENCH=bare,claims; BENCH_CUSTOMERS=n for a small size
	@hack/setup
	@BENCH=$(BENCH) BENCH_CUSTOMERS=$(BENCH_CUSTOMERS) $(GO) run ./internal/bench

profile: ## Keep a CPU profile of a run without Stripe latency in dist/profile, and print its top and Postgres' dearest statements
	@hack/setup
	@$(GO) run ./internal/bench -profile dist/profile
