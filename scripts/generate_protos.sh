#!/bin/sh
# Generates code next to the .proto files, in the given folder (default: this one).
set -eu
out=${1:-.}
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
python -m grpc_tools.protoc -I. --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
    baton/protos/common.proto baton/protos/worker.proto baton/protos/router.proto \
    baton/protos/doctor.proto baton/protos/group.proto baton/protos/rank.proto baton/protos/open_inference.proto
