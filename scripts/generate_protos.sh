#!/bin/sh
# Generates the code beside the .proto files, into the folder given (default: here).
set -eu
out=${1:-.}
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
python -m grpc_tools.protoc -I. --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
    baton/protos/common.proto baton/protos/worker.proto baton/protos/router.proto \
    baton/protos/doctor.proto baton/protos/group.proto baton/protos/rank.proto
