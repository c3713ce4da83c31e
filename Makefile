SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# What floats: Debian's packages (.ci/deps), since a mirror keeps one version of each; the tests
# run against whatever nginx and Redis it has. Go modules are pinned by go.mod and go.sum.
GOLANGCI_VERSION := v2.15.0

VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 30s
GOLANGCI := .tools/golangci-lint-$(GOLANGCI_VERSION)

# A user's PATH on Debian has no nginx in it.
export PATH := $(PATH):/usr/sbin:/sbin
# GNU parallel asks to be cited unless this directory holds a file will-cite.
export PARALLEL_HOME := $(CURDIR)/.tmp/parallel

# ours lists the files of this repository that match, tracked or new; shell-files those whose
# first line names a shell or bats, and the libraries that they source.
ours        = git ls-files -co --exclude-standard --deduplicate $(1) | while read -r file; do [[ ! -f $$file ]] || echo "$$file"; done
shell-files = $(call ours) | xargs awk 'FNR == 1 && (/^\#!.*(bash|bats|\/sh)/ || FILENAME ~ /\.(ba)?sh$$/) {print FILENAME} {nextfile}'

# SC2317 takes a function that only a trap or bats calls for dead code.
SHELLCHECK_OFF := SC2317

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Run nginx, streamcap and a backend, and print the curl lines to try
	./demo

.PHONY: build
build: ## Build bin/streamcap (static), and bin/backend for the demo and e2e
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-X main.version=$(VERSION)" -o bin/streamcap .
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/backend ./e2e/backend/go

.PHONY: test
test: deps ## Run all tests: unit and conformance (real Redis, race detector), e2e, faults in short
	CGO_ENABLED=1 go test -race -shuffle=on -count=1 ./...
	$(MAKE) --no-print-directory e2e
	$(MAKE) --no-print-directory faults-short

.PHONY: e2e
e2e: deps build ## Run the end-to-end tests (real nginx, Redis and binaries); ARGS go to bats
	mkdir -p "$$PARALLEL_HOME" && touch "$$PARALLEL_HOME/will-cite"
	e2e/run $(ARGS)

.PHONY: faults
faults: deps build ## Break Redis, the network and the sidecar under load, at full length (half an hour), and print the table
	go build -o bin/faults ./e2e/faults
	bin/faults -full $(ARGS)

.PHONY: faults-short
faults-short: deps build ## The same in a minute: fewer faults, shorter; ARGS go to bin/faults (-list, -only)
	go build -o bin/faults ./e2e/faults
	bin/faults $(ARGS)

.PHONY: soak
soak: deps build ## Half an hour of load, deploys, kills and Redis restarts at random; ARGS go to bin/faults (-soak 2m, -seed)
	go build -o bin/faults ./e2e/faults
	bin/faults -soak 30m $(ARGS)

.PHONY: bench
bench: build ## Measure against the peers in under 20 minutes; writes docs/bench. ARGS go to bin/bench (-short, -only)
	.ci/deps nginx redis-server wrk /usr/lib/nginx/modules/ngx_http_lua_module.so /usr/share/lua/5.1/nginx/redis.lua
	go build -o bin/bench ./bench
	bin/bench $(ARGS)

.PHONY: lint
lint: deps $(GOLANGCI) ## Check the style of Go, Lua and shell, and nginx's opinion of its examples
	@unformatted=$$($(call ours,'*.go') | xargs gofmt -l); \
	if [[ -n $$unformatted ]]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(GOLANGCI) run
	luacheck --quiet $$($(call ours,'*.lua'))
	shellcheck --external-sources --source-path=SCRIPTDIR --exclude=$(SHELLCHECK_OFF) $$($(shell-files))
	@conf=$$(mktemp -d); trap 'rm -rf "$$conf"' EXIT; \
	for example in nginx.conf.example nginx-two-hop.conf.example; do \
		echo "nginx -t $$example"; \
		sed -e "s#/run/nginx.pid#$$conf/pid#" -e "s#/var/log/nginx#$$conf#" "$$example" >"$$conf/nginx.conf"; \
		nginx -t -q -e "$$conf/error.log" -p "$$conf" -c "$$conf/nginx.conf"; \
	done

.PHONY: check
check: lint test ## Lint and test, as CI does

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
		done; \
	done

.PHONY: compose-test
compose-test: build ## Bring docker-compose.yml up on a real engine and replay the incident there
	e2e/compose/test

.PHONY: deps
deps: ## Install with apt what the demo, the tests and the linters need and isn't there
	@.ci/deps

.PHONY: clean
clean: ## Remove what was built, except the linter in .tools (it takes minutes)
	rm -rf bin .tmp

$(GOLANGCI):
	GOBIN=$(CURDIR)/.tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv .tools/golangci-lint $@
