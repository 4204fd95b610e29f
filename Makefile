# Everything runs from .venv, which `make setup` creates from requirements.lock; every other target does that first.
# Needs make and Python 3.11 or newer. Another interpreter than the one found: make distclean setup PYTHON=/path/to/python
# uv is used where it is installed. To install with pip all the same: make setup UV=

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# How many tests run side by side. They wait as much as they compute: three keep two cores busy.
WORKERS ?= 3
ARGS ?=

VENV := .venv
ENGINE := .venv-engine
RAY := .venv-ray
PEERS := .venv-peers
FUZZER := .venv-schemathesis
SITE := .venv-docs
AUDIT := .venv-audit
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
PIP := $(BIN)/python -m pip --disable-pip-version-check
PAGES := src/ostler/dashboard/static/index.html

# The tests start thousands of Python processes: without compiled files each of them compiles its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help help-all setup demo test test-all check format docs wheel dashboard reference new-user systemd engine ray originals rolling go typescript schemathesis bench bench-peers bench-growth bench-crowd bench-logs bench-gateway bench-dashboard bench-foresight pictures compiled wheel-compiled test-compiled sim planted crash chaos lock audit-deps clean distclean

# A target with `## ` is listed by `make help`, one with `#: ` by `make help-all`.
help: #: list the targets that people use
	@echo "Ostler: one control plane for a mixed fleet of machines that do machine learning"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  make help-all   list the other targets: benchmarks, campaigns, special test suites"

help-all: #: list every target
	@awk -F ':.*#[#:] ' '/^[a-z-]+:.*#[#:] / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  ARGS='...' is passed on to the tests, the demo, the benchmarks and the campaigns; WORKERS=n tests run side by side"

setup: $(STAMP) ## create .venv, install the locked packages, build the dashboard
	@$(MAKE) --no-print-directory dashboard || \
	  echo "setup: the dashboard is not built; all else works. With Node 18 or newer: make dashboard"
	@echo "setup: $(VENV) is ready"

demo: setup ## run a small fleet on this machine: jobs, a manifest, a service, a model
	@$(BIN)/python -m examples.demo $(ARGS)

test: setup ## run the tests, without the long ones
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not long" $(ARGS)

test-all: setup ## run all tests
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(STAMP) ## lint, formatting, types, security, the CI workflow
	@failed=; \
	 echo "check: lint"; $(BIN)/ruff check --output-format concise . || failed=1; \
	 echo "check: formatting"; $(BIN)/ruff format --check --output-format concise . || failed=1; \
	 echo "check: types"; $(BIN)/mypy || failed=1; \
	 echo "check: security"; $(BIN)/bandit -q -ll -c pyproject.toml -r src/ostler || failed=1; \
	 echo "check: workflow"; $(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml || failed=1; \
	 test -z "$$failed"

format: $(STAMP) ## put the code into its standard form
	@$(BIN)/ruff check --fix --exit-zero --output-format concise .
	@$(BIN)/ruff format .

docs: $(STAMP) ## build the site of docs/ into out/site; a link that leads nowhere fails
	@test -x $(SITE)/bin/zensical || scripts/environment.sh $(SITE) docs/site/requirements.txt "$(PYTHON)"
	@$(BIN)/python -m docs.generate.site $(SITE)/bin/zensical out/site

wheel: $(PAGES) $(STAMP) ## build the package with its dashboard into dist/
	@rm -rf dist
	@$(PIP) wheel -q --no-deps --no-build-isolation -w dist .
	@ls dist/*.whl

wheel-compiled: $(PAGES) $(STAMP) #: the same with the compiled core, for this Python on this platform (needs a C compiler)
	@rm -rf dist
	@OSTLER_COMPILED=1 $(PIP) wheel -q --no-deps --no-build-isolation -w dist .
	@ls dist/*.whl

dashboard: $(PAGES) #: build the dashboard into the package (needs Node 18 or newer)
	@:

$(PAGES): $(wildcard dashboard/*.json dashboard/*.ts dashboard/*.html dashboard/src/* dashboard/src/*/*)
	@command -v npm >/dev/null || { echo "dashboard: npm is missing; install Node 18 or newer" >&2; exit 1; }
	@node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' || \
	  { echo "dashboard: Node $$(node --version) is too old; install Node 18 or newer" >&2; exit 1; }
	@echo "dashboard: installing the packages of dashboard/package-lock.json"
	@cd dashboard && npm ci --loglevel=error --no-audit --no-fund >/dev/null
	@cd dashboard && npm run --silent build -- --logLevel warn
	@touch $@

$(STAMP): requirements.lock pyproject.toml scripts/environment.sh
	@scripts/environment.sh $(VENV) requirements.lock "$(PYTHON)"
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@touch $@

systemd: $(STAMP) #: the tests of the machine's service under a real systemd, in namespaces of its own (Linux, root)
	@OSTLER_TEST_SYSTEMD=1 $(BIN)/pytest tests/enrol/test_systemd.py $(ARGS)

engine: $(STAMP) #: the gateway before a real engine: llama.cpp, compiled once into .venv-engine (some minutes)
	@test -x $(ENGINE)/bin/python || $(PYTHON) -m venv $(ENGINE)
	@$(ENGINE)/bin/python -m pip --disable-pip-version-check install -qq -r tests/gateway/engine/requirements.txt
	@OSTLER_TEST_ENGINE=$(CURDIR)/$(ENGINE)/bin/python $(BIN)/pytest tests/gateway/engine $(ARGS)

ray: $(STAMP) #: the bridge before a real Ray of two nodes: jobs, gangs, maps, and what is killed meanwhile (eight minutes)
	@test -x $(RAY)/bin/ray || scripts/environment.sh $(RAY) tests/bridge/requirements.txt "$(PYTHON)"
	@OSTLER_TEST_RAY=$(CURDIR)/$(RAY)/bin/python $(BIN)/pytest tests/bridge/test_ray.py $(ARGS)

originals: $(STAMP) #: the worked cases of the scheduler's page with workers of the original make, fifty times each (a minute)
	@OSTLER_TEST_ROUNDS=50 $(BIN)/pytest -n $(WORKERS) --dist worksteal tests/originals/test_worked_cases.py $(ARGS)

rolling: $(STAMP) #: restarts three workers in turn under load, ten times each: no request is lost (four minutes)
	@OSTLER_TEST_ROUNDS=10 $(BIN)/pytest tests/gateway/e2e/test_restarts.py -k rolling $(ARGS)

go: $(STAMP) #: a worker written in Go at a real hub (needs golang and golang-github-gorilla-websocket-dev of Debian)
	@OSTLER_TEST_GO=1 $(BIN)/pytest tests/originals/test_go_program.py $(ARGS)

typescript: $(STAMP) #: a client in TypeScript, made from the hub's description and run against it (half a minute, Node 18, npm)
	@OSTLER_TEST_TYPESCRIPT=1 $(BIN)/pytest tests/languages $(ARGS)

schemathesis: $(STAMP) #: a fuzzer that has read the hub's description calls it as every role (two minutes)
	@test -x $(FUZZER)/bin/schemathesis || scripts/environment.sh $(FUZZER) tests/schemathesis/requirements.txt "$(PYTHON)"
	@$(BIN)/python tests/schemathesis/run.py $(FUZZER)/bin/schemathesis

reference: $(STAMP) #: write what of docs/ is made from the code: commands, settings, routes, states, errors, pictures
	@$(BIN)/python -m docs.generate

new-user: #: the README's way to the first job, from a clone in an empty folder, with the time of each step
	@$(PYTHON) tests/docs/new_user.py $(ARGS)

bench: $(STAMP) #: measure Ostler on this machine and compare with what was recorded (ARGS=--record keeps the run)
	@$(BIN)/python -m benchmarks.bench $(ARGS)

bench-peers: $(STAMP) #: measure Ostler beside HyperQueue, Ray, Dask, Parsl, Celery and Slurm, each in its own environment
	@$(BIN)/python -m benchmarks.peers $(ARGS)

bench-growth: $(STAMP) #: what a job costs the hub as queue, fleet and history grow, as plots in benchmarks/plots
	@$(BIN)/python -m benchmarks.growth $(ARGS)

bench-crowd: $(STAMP) #: ten thousand connected workers: what they cost the hub, and how soon they are back after kill -9
	@$(BIN)/python -m benchmarks.crowd $(ARGS)

bench-logs: $(STAMP) #: tasks that print without end: heartbeats, the hub's memory, disks, and what a reader sees
	@$(BIN)/python -m benchmarks.logs $(ARGS)

bench-gateway: $(STAMP) #: measure the gateway's relay beside nginx (where it is installed) and a direct connection
	@$(BIN)/python benchmarks/gateway.py $(ARGS)

bench-dashboard: $(STAMP) $(PAGES) #: the dashboard before 400 machines and 50,000 jobs: first content, work in a second, memory (needs Chromium)
	@$(BIN)/python -m benchmarks.dashboard $(ARGS)

pictures: $(STAMP) $(PAGES) #: draw docs/images/fleet.png anew from the tests' fleet (needs Chromium)
	@OSTLER_PICTURES=1 $(BIN)/pytest -q tests/browser/test_sixteen_machines.py -k glance_and_found $(ARGS)

bench-foresight: $(STAMP) #: time why, estimate and whatif on a large fleet, and measure how far they can be trusted
	@$(BIN)/python benchmarks/foresight.py $(ARGS)

compiled: $(STAMP) #: compile the deciding core into build/compiled (needs a C compiler); PYTHONPATH=build/compiled uses it
	@$(BIN)/python compiled/build.py $(ARGS)

test-compiled: compiled #: the core's tests and some hundred worlds of the simulator over the compiled core
	@PYTHONPATH=build/compiled OSTLER_TEST_COMPILED=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal tests/core tests/test_compiled.py $(ARGS)
	@PYTHONPATH=build/compiled $(BIN)/python -m ostler.sim --seeds 300 --processes $(WORKERS)
	@$(BIN)/python compiled/same.py

sim: $(STAMP) #: a campaign of the simulator: many small fleets, each with its own faults (docs/simulation.md)
	@$(BIN)/python -m ostler.sim $(ARGS)

planted: $(STAMP) #: plant each bug of tests/sim/planted into a copy of the code and see who notices (ARGS='--only 012 --seeds 300')
	@$(BIN)/python -m tests.sim.planting $(ARGS)

crash: $(STAMP) #: kill -9 of the hub and of a worker at every commit and every send of a short life, and restarts with a long queue
	@$(BIN)/python -m tests.crash.campaign $(ARGS)

chaos: $(STAMP) #: real faults on real processes, in a quarter of an hour; leaves chaos/report.md (all of it: Linux, root)
	@$(BIN)/python -m chaos $(ARGS)

# Keeps the versions that still fit. To move to the newest ones: make lock ARGS=--upgrade
lock: #: write requirements.lock anew from pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(PIP) install -qq uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --custom-compile-command "make lock" --group dev pyproject.toml \
	  --output-file requirements.lock $(ARGS)
	@echo "lock: $$(grep -c '^[a-z]' requirements.lock) packages"

audit-deps: #: compare what is locked with the known vulnerabilities (needs the network)
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && \
	  $(AUDIT)/bin/python -m pip --disable-pip-version-check install -qq pip-audit; } || \
	  { echo "audit-deps: pip-audit cannot be installed from here; nothing was looked at" >&2; exit 0; }
	@code=0; $(AUDIT)/bin/pip-audit --disable-pip --require-hashes -r requirements.lock >$(AUDIT)/report 2>&1 || code=$$?; \
	 locked=$$(grep -c '^[a-z]' requirements.lock); missed=$$(grep -c 'could not be audited' $(AUDIT)/report); \
	 if [ $$((2 * missed)) -ge "$$locked" ] || grep -qi 'connection\|timed out\|resolve' $(AUDIT)/report; then \
	   echo "audit-deps: the database of vulnerabilities cannot be reached from here; nothing was found or ruled out"; \
	 else cat $(AUDIT)/report; exit $$code; fi

clean: #: remove caches and build outputs
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests $(wildcard examples benchmarks chaos) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean #: remove the environments too
	@rm -rf dashboard/node_modules $(dir $(PAGES)) $(VENV) $(ENGINE) $(RAY) $(PEERS) $(AUDIT) $(FUZZER) $(SITE)
