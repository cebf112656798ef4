#!/bin/sh
# Fails if the generated code does not match the .proto files.
set -eu
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
sh scripts/generate_protos.sh "$fresh"
for file in "$fresh"/baton/protos/*; do
    cmp "$file" "protos/$(basename "$file")" || { echo "protos are stale: run 'make protos'" >&2; exit 1; }
done
