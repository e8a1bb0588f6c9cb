# Every target sets up what it needs; on a bare Debian or Ubuntu machine run as root.
SHELL := /bin/bash
.DEFAULT_GOAL := help

XDG_CACHE_HOME ?= $(HOME)/.cache
export BAYPLAN_CACHE ?= $(XDG_CACHE_HOME)/bayplan
# setup.sh puts there what it had to fetch.
export PATH := $(BAYPLAN_CACHE)/bin:$(PATH)
# The programs of the environment that setup.sh makes from requirements.lock.
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH"
# Neither set-up nor the demonstration outlives make.
SETUP := setpriv --pdeathsig TERM packaging/dev/setup.sh
# As in setup.sh: certificates that only the system has.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS ?= 1
export UV_NATIVE_TLS ?= 1
endif
# uv does not read which index pip is to use.
ifeq ($(UV_DEFAULT_INDEX)$(UV_INDEX_URL),)
PIP_INDEX := $(or $(PIP_INDEX_URL),$(shell sed -n 's/^ *index-url *= *//p' \
	~/.config/pip/pip.conf ~/.pip/pip.conf /etc/pip.conf 2>/dev/null | head -n 1))
ifneq ($(PIP_INDEX),)
export UV_DEFAULT_INDEX := $(PIP_INDEX)
endif
endif
# Tests start a thousand programs in Python, which load quickly only what was compiled before.
unexport PYTHONDONTWRITEBYTECODE
# In how many processes tests run; those without a virtual machine take the others' tests when they have none left. A
# third of the time of each is spent waiting, so that it is one more than the CPUs that are expected.
WORKERS ?= 3
PYTEST := $(RUN) pytest -n $(WORKERS) --dist worksteal
# Tests that want the same virtual machine run in the same process.
PYTEST_E2E := $(RUN) pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

.PHONY: help setup install uninstall install-hooks dist deb setup-deb setup-go setup-interop setup-e2e setup-cluster run test test-all unit interop manifests property schedules e2e
.PHONY: kubelet crio critest cluster lint format bench bench-cluster cluster-tables hops bench-fit bench-oci e2e-costs e2e-load proto reference lock outdated clean conformance coverage mutants

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "%-13s %s\n", $$1, $$2}'

setup:
	@$(SETUP) test

setup-go:
	@$(SETUP) go

install: ## the program in /opt/bayplan, its commands in /usr/local/bin, its systemd unit (as root)
	@$(SETUP) install

uninstall: ## stop it, give containers their CPUs and nodes back, take away what `make install` brought (as root)
	@$(SETUP) uninstall

dist: setup ## in dist/: source and wheel of the last commit, the same bytes each time, and a bill of materials
	$(RUN) packaging/build.sh dist

deb: setup-deb ## in dist/: also the Debian package, for Debian 12 and 13
	$(RUN) packaging/build.sh deb
	lintian --fail-on error,warning dist/bayplan_*.deb

install-hooks: ## install the OCI hook, or the runtime wrapper: FORM=hook (see docs/oci-hook.md)
	@packaging/install-hooks $(FORM)

setup-deb:
	@$(SETUP) deb

setup-interop:
	@$(SETUP) interop

setup-e2e:
	@$(SETUP) e2e

setup-cluster:
	@$(SETUP) cluster

run: ## run the plugin against the live NRI socket, else show it at work in a virtual machine
	@setpriv --pdeathsig TERM packaging/dev/run.sh $(ARGS)

test: setup-e2e lint ## lint, then tests: unit, property, simulated runtime, interop, virtual machines
	$(PYTEST) -m "not matrix" --ignore tests/e2e
	$(PYTEST_E2E) tests/e2e -m "not matrix" --durations 25

test-all: setup-deb setup-e2e lint coverage ## lint, coverage, then all tests on all versions and forms, and properties with many examples
	$(PYTEST) -m "not e2e and not cluster" --hypothesis-profile many
	$(PYTEST_E2E) tests/e2e tests/e2e/test_agent.py tests/e2e/test_real_kubelet.py tests/e2e/test_kubelet_eviction.py tests/e2e/test_crio.py tests/e2e/test_crio_faults.py

unit: setup ## the tests that need neither root nor a virtual machine
	$(PYTEST) -m "not e2e and not interop and not root and not matrix"

interop: setup-interop ## only the tests against the Go side of NRI in several versions, and other people's programs
	$(PYTEST) -m interop

conformance: setup ## the engine kubelet against recorded answers of kubelet; ARGS=DIRECTORY: those of another version
	$(RUN) PYTHONPATH=tests python -m conformance $(or $(ARGS),tests/data/vectors)

coverage: setup ## which lines the tests run that need neither root nor a virtual machine, in their programs too; fails below the threshold
	rm -f .coverage .coverage.*
	$(RUN) coverage run -m pytest -n $(WORKERS) --dist worksteal -m "not e2e and not interop and not root and not matrix" $(ARGS)
	$(RUN) coverage combine --quiet
	$(RUN) coverage report --skip-covered

MODULE ?= plugin/bayplan/placement/ledger_check.py
TESTS ?= tests/unit/placement/test_ledger_check.py
mutants: setup ## change a module in one place after the other, and see whether tests notice: MODULE=FILE TESTS="FILE..." ARGS="--minutes 10"
	$(RUN) python packaging/dev/mutants.py $(MODULE) $(TESTS) $(ARGS)

property: setup ## only the tests of properties, with many examples; ARGS="--hypothesis-profile elsewhere": with others
	$(PYTEST) -m hypothesis --hypothesis-profile many $(ARGS)

schedules: setup ## 20,000 random schedules of everything that changes a promise; ARGS="FIRST COUNT": others
	$(RUN) PYTHONPATH=tests python tests/bench/schedules.py $(ARGS)

e2e: setup-e2e ## only the tests in virtual machines
	$(PYTEST_E2E) tests/e2e

kubelet: setup-e2e ## two versions of kubelet itself (built here, four minutes each) beside the engine kubelet, and with the agent, in a virtual machine
	$(PYTEST_E2E) tests/e2e/test_real_kubelet.py tests/e2e/test_kubelet_eviction.py tests/e2e/test_agent.py tests/e2e/test_cold_boot.py

crio: setup-e2e ## CRI-O itself: NRI, hook and wrapper, in a virtual machine
	$(PYTEST_E2E) -k crio tests/e2e/test_short_lives.py tests/e2e/test_crio.py tests/e2e/test_crio_faults.py

critest: setup-e2e ## cri-tools' validation suite on containerd and CRI-O, without bayplan and beside it, in virtual machines; ARGS="-k '2.4 and nri-nri'": some
	$(PYTEST_E2E) tests/e2e/test_critest.py $(ARGS)

cluster: setup-cluster ## Kubernetes' control plane itself (built here, an hour): the agent, the chart, and a node that joins it
	$(PYTEST_E2E) tests/interop/test_api_server.py tests/interop/test_install.py tests/interop/test_scheduler.py tests/interop/test_kube_scheduler.py tests/interop/test_claims_in_cluster.py tests/e2e/test_cluster.py tests/e2e/test_cluster_scheduling.py tests/e2e/test_claims.py tests/e2e/test_chart_in_cluster.py

lint: setup ## ruff, mypy --strict, import-linter, generated code up to date
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports
	proto/generate.sh --check

format: setup ## let ruff format and fix
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: setup-go ## what bayplan costs a node, as one table; ARGS="requests --beside 4000": some of it, or more
	$(RUN) PYTHONPATH=tests python tests/bench/costs.py $(ARGS)

cluster-tables: setup-go ## schedulers times engines (libmem too) on 100, 1,000 and 5,000 nodes, as CSV and one page: ARGS="--trace FILE --trace-format NAME"
	$(RUN) PYTHONPATH=tests python tests/bench/cluster_tables.py $(ARGS)

bench-cluster: setup-cluster ## what agents cost Kubernetes' API server itself, and how they come back to one that was killed; ARGS="--agents 300"
	$(RUN) PYTHONPATH=tests python tests/bench/api_server_load.py $(ARGS)

hops: setup ## functions and modules on the way of a creation; ARGS="250 --list": beside others, with their names
	$(RUN) PYTHONPATH=tests python tests/bench/hops.py $(ARGS)

bench-fit: setup-go ## how well pods fit, beside kubelet's rules and nri-plugins, as tables of memory and of CPUs
	$(RUN) PYTHONPATH=tests python tests/bench/replay.py $(ARGS)
	$(RUN) PYTHONPATH=tests python tests/bench/cpu_fit.py

e2e-costs: setup-e2e ## where the time of a scenario in a virtual machine goes
	$(RUN) python tests/e2e/costs.py

MINUTES ?= 10
e2e-load: setup-e2e ## what becomes of full nodes with relief and without (MINUTES=10 for each of four rows), and of promises touched at once
	$(RUN) python tests/e2e/relief_under_load.py --minutes $(MINUTES) $(ARGS)

bench-oci: setup-e2e ## what hook, precreate, wrapper and NRI add to a start, in virtual machines
	$(RUN) python tests/e2e/start_overhead.py $(ARGS)

proto: setup ## generate plugin/bayplan/_proto from proto/
	proto/generate.sh

reference: setup ## make man pages, completions, docs/metrics.md and the pictures of docs/concepts.md from the code
	$(RUN) PYTHONPATH=packaging/dev python -m reference .

manifests: setup-go ## render packaging/kubernetes from the Helm chart (builds Helm, once)
	$(RUN) PYTHONPATH=tests:tests/e2e python tests/interop/chart.py >packaging/kubernetes/bayplan.yaml.new
	mv packaging/kubernetes/bayplan.yaml.new packaging/kubernetes/bayplan.yaml

outdated: setup setup-go ## list what is pinned and not the newest, by what the registries say
	$(RUN) python packaging/dev/outdated.py

# Groups of a project that uv is told not to manage are closed to it, hence the copy without that line.
lock: setup ## bring requirements.lock up to date with pyproject.toml; ARGS=--upgrade takes the newest versions
	mkdir -p build && sed '/^managed = false$$/d' pyproject.toml >build/pyproject.toml
	uv pip compile build/pyproject.toml --quiet --extra agent --group build/pyproject.toml:dev --universal --generate-hashes \
		--no-emit-index-url --no-annotate --no-header $(ARGS) --output-file requirements.lock

clean: ## remove what builds and tests left in the tree (the cache of images stays)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist tests/e2e/artifacts
