#!/bin/sh
# `make base-check`: serve a chat with a handover from a wheel with only its base dependencies, in a new environment.
#
#     sh scripts/base_check.sh WHEEL
#
# TORCH_INDEX: package index with the build of torch. Default: pip's index.
set -eu

MOST_MB=1300
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${PYTHON:-python3} -m venv "$work/venv"
install() {
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$here/../constraints.txt" "$@"
}
install --no-deps --retries 1 ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
install "$1"
cp "$here/image/check_served.py" "$work"
cd "$work"
env -u PYTHONPATH timeout 300 venv/bin/python -I check_served.py base
size=$(du -sm venv | cut -f1)
echo "base environment: $size MB"
if [ "$size" -ge "$MOST_MB" ] && venv/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; then
    echo "that is more than $MOST_MB MB, without CUDA" >&2
    exit 1
fi
