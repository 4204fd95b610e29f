# Everything runs from .venv, which `make setup` builds from requirements.lock; every other target does that first.
# Needs make and Python 3.11 or newer. Another interpreter than the one found: make setup PYTHON=/path/to/python

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
WORKERS ?= 2
ARGS ?=

VENV := .venv
ENGINE := .venv-engine
PEERS := .venv-peers
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup check format test systemd engine demo bench bench-peers bench-growth bench-crowd bench-logs bench-gateway bench-foresight sim lock clean distclean

help: ## print this list
	@echo "Ostler: one control plane for a mixed fleet of machines that do machine learning"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  ARGS='...' is passed on to test, demo, bench and sim; WORKERS=n sets how many tests run side by side"

setup: $(STAMP) ## make .venv and install what is locked (does nothing when that is done)
	@echo "setup: $(VENV) is ready"

# One environment at a time: a half-made one, left by an interpreter without ensurepip, has no pip and is made anew.
$(STAMP): requirements.lock pyproject.toml
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  if [ -z "$(PYTHON)" ]; then \
	    echo "setup: no Python 3.11 or newer was found." >&2; \
	    echo "       Install one, or name it: make setup PYTHON=/path/to/python" >&2; exit 1; \
	  fi; \
	  if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	    echo "setup: $(PYTHON) is too old; Ostler needs Python 3.11 or newer." >&2; exit 1; \
	  fi; \
	  if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "setup: $(PYTHON) cannot make virtual environments here (no ensurepip)." >&2; \
	    echo "       On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	  fi; \
	  echo "setup: making $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv --clear $(VENV); \
	fi
	@echo "setup: installing what requirements.lock names"
	@$(PIP) install -qq --require-hashes -r requirements.lock
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@touch $@

check: $(STAMP) ## lint, formatting, types
	@failed=; \
	 echo "check: lint"; $(BIN)/ruff check --output-format concise . || failed=1; \
	 echo "check: formatting"; $(BIN)/ruff format --check --output-format concise . || failed=1; \
	 echo "check: types"; $(BIN)/mypy || failed=1; \
	 test -z "$$failed"

format: $(STAMP) ## put the code into its standard form
	@$(BIN)/ruff check --fix --exit-zero --output-format concise .
	@$(BIN)/ruff format .

test: $(STAMP) ## run the tests
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

systemd: $(STAMP) ## the tests of the machine's service under a real systemd, in namespaces of its own (Linux, root)
	@OSTLER_TEST_SYSTEMD=1 $(BIN)/pytest tests/enrol/test_systemd.py $(ARGS)

engine: $(STAMP) ## the gateway before a real engine: llama.cpp, compiled once into .venv-engine (some minutes)
	@test -x $(ENGINE)/bin/python || $(PYTHON) -m venv $(ENGINE)
	@$(ENGINE)/bin/python -m pip --disable-pip-version-check install -qq -r tests/gateway/engine/requirements.txt
	@OSTLER_TEST_ENGINE=$(CURDIR)/$(ENGINE)/bin/python $(BIN)/pytest tests/gateway/engine $(ARGS)

demo: $(STAMP) ## a small fleet on this machine, from the first job to the last
	@$(BIN)/python examples/demo.py $(ARGS)

bench: $(STAMP) ## measure Ostler on this machine and compare with what was recorded (ARGS=--record keeps the run)
	@$(BIN)/python -m benchmarks.bench $(ARGS)

bench-peers: $(STAMP) ## measure Ostler beside HyperQueue, Ray, Dask, Parsl, Celery and Slurm, each in its own environment
	@$(BIN)/python -m benchmarks.peers $(ARGS)

bench-growth: $(STAMP) ## what a job costs the hub as queue, fleet and history grow, as plots in benchmarks/plots
	@$(BIN)/python -m benchmarks.growth $(ARGS)

bench-crowd: $(STAMP) ## ten thousand connected workers: what they cost the hub, and how soon they are back after kill -9
	@$(BIN)/python -m benchmarks.crowd $(ARGS)

bench-logs: $(STAMP) ## tasks that print without end: heartbeats, the hub's memory, disks, and what a reader sees
	@$(BIN)/python -m benchmarks.logs $(ARGS)

bench-gateway: $(STAMP) ## measure the gateway's relay beside nginx (where it is installed) and a direct connection
	@$(BIN)/python benchmarks/gateway.py $(ARGS)

bench-foresight: $(STAMP) ## time why, estimate and whatif on a large fleet, and measure how far they can be trusted
	@$(BIN)/python benchmarks/foresight.py $(ARGS)

sim: $(STAMP) ## a long campaign of the simulator: many fleets, many faults, every invariant after every event
	@$(BIN)/python -m ostler.sim.campaign $(ARGS)

# Keeps the versions that still fit. To move to the newest ones: make lock ARGS=--upgrade
lock: ## write requirements.lock anew from pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(PIP) install -qq uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --custom-compile-command "make lock" --group dev pyproject.toml \
	  --output-file requirements.lock $(ARGS)
	@echo "lock: $$(grep -c '^[a-z]' requirements.lock) packages"

clean: ## remove caches and build outputs
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests $(wildcard examples benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environments too
	@rm -rf $(VENV) $(ENGINE) $(PEERS)
