#!/bin/sh
# Builds the bundle for `make gpu-check` on a GPU machine without network access: trimmed wheels, and FlashInfer's
# kernels, which are compiled here without a GPU.
#
#     sh scripts/gpu_bundle.sh [BUNDLE]
#
# BUNDLE, .gpu_bundle by default, gets one file, site.tar.xz. Intermediate files stay in $BUILD (.gpu_build), so that an
# interrupted run can continue. $PYTHON must have torch, of any build. $MAX_JOBS compilers run at a time (default: the
# number of cores). $CUDA_HOME is a CUDA 13.0 toolkit; without one, nvcc is installed from wheels.
set -eu

BUNDLE=${1:-.gpu_bundle}
BUILD=$(mkdir -p "${BUILD:-.gpu_build}" && cd "${BUILD:-.gpu_build}" && pwd)
PYTHON=${PYTHON:-.venv/bin/python}
MAX_JOBS=${MAX_JOBS:-$(nproc)}
TARGET_PYTHON=3.12
FLASHINFER_CUDA_ARCH_LIST=${FLASHINFER_CUDA_ARCH_LIST:-9.0a}
# What torch and transformers do not bring: for the engine, and for `baton serve`.
PACKAGES="flashinfer-python==0.7.2 apache-tvm-ffi>=0.1.11,<0.2 nvidia-ml-py requests urllib3 charset-normalizer
    nixl==1.5.1 nixl-cu13==1.5.1 xxhash psutil"
PACKAGES="$PACKAGES annotated-doc annotated-types click fastapi grpcio grpcio-health-checking grpcio-reflection httptools
    opentelemetry-api orjson prometheus-client protobuf pydantic pydantic-core redis rich-click starlette tiktoken
    typing-inspection uvicorn uvloop xgrammar"
PACKAGES="$PACKAGES compressed-tensors gguf loguru" # which write the checkpoints of the check
TOOLKIT="nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.*
    nvidia-cuda-cccl==13.0.*"
export MAX_JOBS FLASHINFER_CUDA_ARCH_LIST

once() { # runs a command unless it has succeeded before
    [ -e "$BUILD/$1.done" ] && return
    echo "$1"
    "$1"
    touch "$BUILD/$1.done"
}

download_wheels() {
    platforms=$(for n in 39 35 34 31 28 27 24 17; do echo "--platform manylinux_2_${n}_x86_64"; done)
    for package in $PACKAGES; do
        # shellcheck disable=SC2086  # several words
        "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --constraint constraints.txt $platforms \
            --dest "$BUILD/wheels" \
            --platform manylinux2014_x86_64 --python-version "$TARGET_PYTHON" --implementation cp "$package"
    done
}

install_compiler() { # FlashInfer on this machine, to generate the sources to compile
    "$PYTHON" -m pip install --quiet --no-deps --target "$BUILD/tools" \
        "flashinfer-python==0.7.2" "apache-tvm-ffi>=0.1.11,<0.2" nvidia-ml-py
}

install_toolkit() {
    # shellcheck disable=SC2086  # several words
    "$PYTHON" -m pip install --quiet --no-deps --target "$BUILD/toolkit" $TOOLKIT
    cuda=$BUILD/toolkit/nvidia/cu13
    ln -sfn lib "$cuda/lib64"
    for library in "$cuda"/lib/lib*.so.[0-9]*; do
        ln -sf "$(basename "$library")" "${library%%.so.*}.so"
    done
}

add_headers() { # headers that FlashInfer includes from libraries that it does not call
    for package in "nvidia-cublas>=13,<14" "nvidia-curand>=10,<11"; do
        "$PYTHON" -m pip download --quiet --no-deps --dest "$BUILD/headers" "$package"
    done
    for wheel in "$BUILD"/headers/*.whl; do
        "$PYTHON" -m zipfile -e "$wheel" "$BUILD/headers/unpacked"
    done
    mkdir -p "$BUILD/include"
    mv "$BUILD"/headers/unpacked/nvidia/*/include/* "$BUILD/include"
    rm -r "$BUILD/headers"
}

add_driver() { # stub of the driver's library for the linker; the loader finds the real one
    mkdir -p "$BUILD/stubs"
    echo "" | cc -shared -fPIC -x c - -Wl,-soname,libcuda.so.1 -o "$BUILD/stubs/libcuda.so"
}

once download_wheels
once install_compiler
for candidate in "${CUDA_HOME:-}" /usr/local/cuda "$(dirname "$(dirname "$(command -v nvcc || echo /no/bin/nvcc)")")"; do
    [ -x "$candidate/bin/nvcc" ] && [ -e "$candidate/include/cuda_runtime.h" ] && CUDA_HOME=$candidate && break
    CUDA_HOME=
done
if [ -z "$CUDA_HOME" ]; then
    once install_toolkit
    CUDA_HOME=$BUILD/toolkit/nvidia/cu13
fi
case "$("$CUDA_HOME/bin/nvcc" --version)" in
*"release 13."*) ;;
*) echo "$CUDA_HOME has another nvcc than CUDA 13's; set CUDA_HOME to that, or unset it and have it fetched" >&2 && exit 1 ;;
esac
[ -e "$CUDA_HOME/include/cublasLt.h" ] || once add_headers
[ -e "$CUDA_HOME/lib64/stubs/libcuda.so" ] || once add_driver

CUDA_HOME=$CUDA_HOME CPATH=$BUILD/include LIBRARY_PATH=$BUILD/stubs PYTHONPATH=$BUILD/tools \
    FLASHINFER_WORKSPACE_BASE=$BUILD "$PYTHON" scripts/gpu_kernels.py "$BUILD/kernels"
"$PYTHON" scripts/gpu_bundle_pack.py "$BUILD/wheels" "$BUILD/kernels" "$BUILD/site" "$BUNDLE/site.tar.xz"
