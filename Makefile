# Everything is installed into .venv, in the versions of constraints.txt. Without an NVIDIA driver torch is the build for
# CPUs, which is much smaller; TORCH and TORCH_INDEX choose another: make serve TORCH=torch==2.12.0 TORCH_INDEX=
PYTHON ?= python3
TORCH ?= $(shell grep '^torch==' constraints.txt)
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi 2> /dev/null),,https://download.pytorch.org/whl/cpu)
PORT ?= 8000
MODEL ?=
FUZZ_SECONDS ?= 600
PEERS ?= $(HOME)/.cache/baton/engines/peers
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
CHECKOV := 3.3.30

.PHONY: setup serve test test-all fuzz lint audit bench engines-peers gpu-bundle gpu-check chaos protos constraints dist \
	base-check image-check

# What serving needs, and nothing else.
.venv/.base: pyproject.toml setup.py constraints.txt \
		$(wildcard */native/*.cpp */*/native/*.cpp */native/*.hpp */*/native/*.hpp */native/*/*.hpp */native/*/*.inl)
	@echo "Step 1 of 4: a virtual environment, .venv, with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@$(PIP) --quiet --upgrade pip
	@echo "Step 2 of 4: PyTorch (for CPUs 190 MB to download, for GPUs 3 GB)"
	@$(PIP) --no-deps --retries 1 $(addprefix --extra-index-url ,$(TORCH_INDEX)) "$(TORCH)"
	@echo "Step 3 of 4: the other dependencies (for CPUs 90 MB), and Baton with its kernels, compiled (a minute or two)"
	@grep -v '^torch==' constraints.txt > .venv/constraints.txt # TORCH may be another
	@$(PIP) --constraint .venv/constraints.txt --editable .
	@echo "Step 4 of 4: done, .venv has $$(du -sm .venv | cut -f1) MB"
	@touch $@

# Baton is there already: pip adds what the extra has.
.venv/.dev: .venv/.base
	@echo "Tools and optional packages for development (760 MB to download)"
	@$(PIP) --quiet --constraint .venv/constraints.txt "baton-serve[dev]"
	@touch $@

setup: .venv/.dev

serve: .venv/.base
	$(BIN)/baton serve $(MODEL) --port $(PORT)

# Checkov does not go together with our pytest: it has an environment of its own, and a test that uses it.
.venv/checkov/$(CHECKOV).done: .venv/.dev
	$(PYTHON) -m venv .venv/checkov
	.venv/checkov/bin/python -m pip install --quiet "checkov==$(CHECKOV)"
	touch $@

PYTEST := $(BIN)/python -m pytest -q --durations=30 --numprocesses 2 --no-loadscope-reorder --rerun-failed

test: setup .venv/checkov/$(CHECKOV).done
	$(PYTEST) -m "not slow"

# Everything, including what takes long, and a minute of new inputs for each fuzzer.
test-all: setup .venv/checkov/$(CHECKOV).done
	$(PYTEST)
	$(BIN)/python -m pytest -q tests/fuzz --fuzz-seconds 60 --numprocesses 2

fuzz: setup
	$(BIN)/python -m pytest -q tests/fuzz --fuzz-seconds $(FUZZ_SECONDS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	sh scripts/check_protos.sh

audit: setup
	$(BIN)/python scripts/audit.py $(AUDIT)

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
	$(BIN)/python -m tests.faults --router-losses 1000 --json benchmarks/results/chaos_routers.json

protos: setup
	sh scripts/generate_protos.sh

# The tested versions, from this environment.
constraints: setup
	$(BIN)/python scripts/constraints.py

# The sdist, and the wheel that is built from it.
dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python scripts/image/check_wheel.py dist/*.whl
	$(BIN)/python -m twine check --strict dist/*

# The wheel with the base dependencies alone, in an environment of its own: serves once.
base-check: dist
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) sh scripts/base_check.sh dist/*.whl

image-check:
	PYTHON=$(PYTHON) sh scripts/image/check.sh

# The plots of README.md and docs/, from benchmarks/results.
.PHONY: plots
plots: setup
	$(BIN)/python -m benchmarks.plots
