#!/bin/sh
# What an image holds, step by step: the Dockerfile's build runs this, and so does `make image-check` without Docker.
#
#   install.sh wheel DIST            builds Baton's wheel into DIST, and refuses one that lacks something
#   install.sh dependencies VENV [gpu]   a virtual environment with all that Baton needs: the very files of
#                                    constraints.txt and, for GPUs, gpu.txt
#   install.sh kernels VENV          FlashInfer's compiled kernels, since an image has no compiler for them
#   install.sh baton VENV DIST       Baton itself into it, and a list of what is in it
#
# TORCH_INDEX: the package index that has the wanted build of torch; unset, pip's own (PyPI's is the CUDA build).
# TORCH_SHA256: the hash that its file must have; unset, that of gpu.txt for GPUs and pip's own index, otherwise any.
# FLASHINFER_INDEX, FLASHINFER_SHA256: the same for FlashInfer's kernels, which PyPI does not have.
set -eu

here=$(dirname "$0")
root=$here/../..
python=${PYTHON:-python3}

case ${1:-} in
wheel)
    $python -m pip wheel --quiet --no-deps --wheel-dir "$2" "$root"
    $python "$here/check_wheel.py" "$2"/*.whl
    ;;
dependencies)
    $python -m venv --without-pip "$2"
    lists=$(mktemp -d)
    trap 'rm -rf "$lists"' EXIT
    files=$here/constraints.txt
    torch=$(grep '^torch==' "$files")${TORCH_SHA256:+ --hash=sha256:$TORCH_SHA256}
    if [ "${3:-}" = gpu ]; then
        # Another build of torch has other libraries, which are resolved below.
        others=$([ -z "${TORCH_INDEX:-}" ] || echo '^nvidia-|^cuda-|^triton==')
        grep -v -E "${others:-^#}" "$here/gpu.txt" | cat "$files" - > "$lists/files"
        files=$lists/files
        [ -n "${TORCH_INDEX:-}${TORCH_SHA256:-}" ] || torch=$(grep '^torch==' "$here/gpu.txt")
    fi
    echo "$torch" > "$lists/torch"
    grep -v -e '^#' -e '^torch==' "$files" > "$lists/rest"
    sed 's/ .*//' "$files" > "$lists/versions"
    # By itself: an index for one build of torch lacks the rest.
    $python -m pip --python "$2" install --quiet --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
        --requirement "$lists/torch"
    $python -m pip --python "$2" install --quiet --no-deps --require-hashes --requirement "$lists/rest"
    # Their other requirements: backports for an older Python, and the libraries of another build of torch for GPUs.
    # xgrammar works without Triton, which torch's CUDA build brings and its CPU build does without.
    grep -v '^xgrammar==' "$lists/versions" > "$lists/resolved"
    $python -m pip --python "$2" install --quiet --requirement "$lists/resolved"
    ;;
kernels)
    kernels=$(mktemp)
    trap 'rm -f "$kernels"' EXIT
    version=$(sed -n 's/^flashinfer-python==\([^ ]*\).*/\1/p' "$here/gpu.txt")
    echo "flashinfer-jit-cache==$version${FLASHINFER_SHA256:+ --hash=sha256:$FLASHINFER_SHA256}" > "$kernels"
    $python -m pip --python "$2" install --quiet --no-deps ${FLASHINFER_INDEX:+--index-url "$FLASHINFER_INDEX"} \
        --requirement "$kernels"
    ;;
baton)
    $python -m pip --python "$2" install --quiet --no-deps --no-index "$3"/*.whl
    if ! report=$($python -m pip --python "$2" check); then
        problems=$(echo "$report" | grep -v '^xgrammar .* requires triton, which is not installed') || true
        if [ -z "$report" ] || [ -n "$problems" ]; then
            echo "pip check: $problems" >&2
            exit 1
        fi
    fi
    "$2/bin/python" "$here/sbom.py" > "$2/sbom.cdx.json"
    ;;
*)
    sed -n '4,8s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
