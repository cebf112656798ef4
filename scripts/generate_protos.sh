#!/bin/sh
# Generates the code beside the .proto files, into the folder given (default: here).
set -eu
out=${1:-.}
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
python -m grpc_tools.protoc -I. --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
    protos/common.proto protos/worker.proto protos/router.proto protos/doctor.proto protos/group.proto protos/rank.proto
