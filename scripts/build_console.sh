#!/bin/sh
# Builds the pages of the web console and of the API's description into router/console/built and router/api_docs/built,
# which are committed: serving needs no node. With the argument --check, builds into a temporary folder and compares.
set -eu
cd "$(dirname "$0")/../console"
npm ci --no-audit --no-fund --silent --ignore-scripts
npx --no-install tsc --noEmit
if [ "${1:-}" = "--check" ]; then
    built=$(mktemp -d)
    trap 'rm -rf "$built"' EXIT
    node build.mjs "$built"
    for page in console api_docs; do
        diff -r "$built/$page/built" "../router/$page/built" || {
            echo "router/$page/built is not the build of console/: run scripts/build_console.sh" >&2
            exit 1
        }
    done
else
    node build.mjs
fi
