#!/bin/sh
# Builds the web console's page into router/console/built, which is committed: serving needs no node.
# With the argument --check, builds into a temporary folder and compares.
set -eu
cd "$(dirname "$0")/../console"
npm ci --no-audit --no-fund --silent
npx --no-install tsc --noEmit
if [ "${1:-}" = "--check" ]; then
    built=$(mktemp -d)
    trap 'rm -rf "$built"' EXIT
    node build.mjs "$built/built"
    diff -r "$built/built" ../router/console/built || {
        echo "router/console/built is not the build of console/: run scripts/build_console.sh" >&2
        exit 1
    }
else
    node build.mjs
fi
