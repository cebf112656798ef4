# Everything lives in .venv; TORCH pins the build (on a GPU machine: make setup TORCH=torch).
PYTHON ?= python3
TORCH ?= torch==2.13.0
PORT ?= 8000
MODEL ?=
FUZZ_SECONDS ?= 600
PEERS ?= $(HOME)/.cache/baton/engines/peers
BIN := .venv/bin
CHECKOV := 3.3.30

.PHONY: setup serve test fuzz lint audit bench engines-peers gpu-bundle gpu-check chaos protos image-constraints image-check

setup: .venv/.done

.venv/.done: pyproject.toml setup.py $(wildcard */native/*.cpp */native/*.hpp */native/*/*.hpp */native/*/*.inl)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

serve: setup
	$(BIN)/baton serve $(MODEL) --port $(PORT)

# Checkov does not go together with our pytest: it has an environment of its own, and a test that uses it.
.venv/checkov/$(CHECKOV).done: .venv/.done
	$(PYTHON) -m venv .venv/checkov
	.venv/checkov/bin/python -m pip install --quiet "checkov==$(CHECKOV)"
	touch $@

test: setup .venv/checkov/$(CHECKOV).done
	$(BIN)/python -m pytest -q --durations=30 --numprocesses 2 --no-loadscope-reorder

fuzz: setup
	$(BIN)/python -m pytest -q tests/fuzz --fuzz-seconds $(FUZZ_SECONDS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	sh scripts/check_protos.sh

audit: setup
	$(BIN)/python scripts/audit.py

bench: setup
	$(BIN)/python -m benchmarks.prefix_index --json benchmarks/results/prefix_index.json
	$(BIN)/python -m benchmarks.kv_transfer --json benchmarks/results/kv_transfer.json
	$(BIN)/python -m benchmarks.handover --json benchmarks/results/handover.json
	$(BIN)/python -m benchmarks.serve --json benchmarks/results/serve.json
	$(BIN)/python -m benchmarks.overload --json benchmarks/results/overload.json
	$(BIN)/python -m benchmarks.simulator --json benchmarks/results/simulator.json
	$(BIN)/python -m benchmarks.disaggregation --json benchmarks/results/disaggregation.json

# The engines that ours is compared with, each in an environment of its own, outside of this folder.
engines-peers: setup
	$(BIN)/python -m benchmarks.engines.peers "$(PEERS)"

# What a GPU machine without a network needs for the check, built on a machine without a GPU; may take an hour.
gpu-bundle: setup
	PYTHON=$(BIN)/python sh scripts/gpu_bundle.sh

# On a machine with a GPU: with the bundle, under any python3 that has torch and transformers; else in this environment.
gpu-check:
	sh scripts/gpu_check.sh

chaos: setup
	$(BIN)/python -m tests.faults --json benchmarks/results/chaos.json

protos: setup
	sh scripts/generate_protos.sh

# The versions in the images, from this environment; then `make image-check`, which installs what an image holds.
image-constraints: setup
	$(BIN)/python scripts/image/constraints.py > scripts/image/constraints.txt

image-check:
	PYTHON=$(PYTHON) sh scripts/image/check.sh

# The plots of README.md and docs/, from benchmarks/results.
.PHONY: plots
plots: setup
	$(BIN)/python -m benchmarks.plots
