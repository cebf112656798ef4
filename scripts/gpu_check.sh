#!/bin/sh
# `make gpu-check`: compares the engine on a GPU with references and benchmarks it; see docs/gpu.md.
#
#     sh scripts/gpu_check.sh [BUNDLE] [OPTIONS OF python -m benchmarks.gpu]
#
# With BUNDLE/site.tar.xz, see scripts/gpu_bundle.sh, $PYTHON (python3) needs only torch and transformers, and nothing is
# compiled. Otherwise $PYTHON needs baton-serve[gpu], and FlashInfer compiles its kernels on first use.
set -eu

BUNDLE=.gpu_bundle
case "${1:--}" in -*) ;; *) BUNDLE=$1 && shift ;; esac
if [ -e "$BUNDLE/site.tar.xz" ]; then
    SITE=$(mktemp -d)
    trap 'rm -rf "$SITE"' EXIT
    trap 'exit 130' INT TERM
    PYTHON=${PYTHON:-python3}
    "$PYTHON" -W ignore -m tarfile -e "$BUNDLE/site.tar.xz" "$SITE"
    mkdir "$SITE/baton_serve.dist-info" # its version, which `baton` reads, as if it were installed
    { echo "Metadata-Version: 2.1"; echo "Name: baton-serve"; sed -n 's/^version = "\(.*\)"/Version: \1/p' pyproject.toml; } \
        >"$SITE/baton_serve.dist-info/METADATA"
    export PYTHONPATH="$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH}" FLASHINFER_WORKSPACE_BASE="$SITE"
    export FLASHINFER_DISABLE_JIT=1 FLASHINFER_USE_CUDA_NORM=1 # use the compiled norms, not those of a DSL
    export HF_HUB_OFFLINE=1                                    # transformers must not wait for a network to fetch kernels
else
    PYTHON=${PYTHON:-.venv/bin/python}
fi
"$PYTHON" -m benchmarks.gpu --json benchmarks/results/gpu.json "$@"
