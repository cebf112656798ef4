#!/bin/sh
# What an image holds, step by step: the Dockerfile's build runs this, and so does `make image-check` without Docker.
#
#   install.sh wheel DIST            builds Baton's wheel into DIST, and refuses one that lacks something
#   install.sh dependencies VENV     a virtual environment with all that Baton needs: the very files of constraints.txt
#   install.sh gpu VENV              what a GPU needs beside them: the versions of gpu.txt
#   install.sh baton VENV DIST       Baton itself into it, and a list of what is in it
#
# TORCH_INDEX: the package index that has the wanted build of torch; unset, pip's own (PyPI's is the CUDA build).
# FLASHINFER_INDEX: the package index that has FlashInfer's kernels compiled, since an image has no compiler for them.
# TORCH_SHA256: the hash that its file must have; unset, any of that version is taken.
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
    torch=$(grep '^torch==' "$here/constraints.txt")
    echo "$torch${TORCH_SHA256:+ --hash=sha256:$TORCH_SHA256}" > "$lists/torch"
    grep -v -e '^#' -e '^torch==' "$here/constraints.txt" > "$lists/rest"
    sed 's/ .*//' "$here/constraints.txt" > "$lists/versions"
    # By itself: an index for one build of torch lacks the rest.
    $python -m pip --python "$2" install --quiet --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
        --requirement "$lists/torch"
    $python -m pip --python "$2" install --quiet --no-deps --require-hashes --requirement "$lists/rest"
    # Their other requirements: a GPU's libraries, which torch pins, and backports for an older Python. xgrammar works
    # without Triton, which torch's CUDA build brings and its CPU build does without.
    grep -v '^xgrammar==' "$lists/versions" > "$lists/resolved"
    $python -m pip --python "$2" install --quiet --requirement "$lists/resolved"
    ;;
gpu)
    versions=$(mktemp)
    trap 'rm -f "$versions"' EXIT
    sed 's/ .*//' "$here/constraints.txt" > "$versions"
    $python -m pip --python "$2" install --quiet ${FLASHINFER_INDEX:+--extra-index-url "$FLASHINFER_INDEX"} \
        --constraint "$versions" --requirement "$here/gpu.txt"
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
    sed -n '4,7s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
