#!/bin/sh
# `make image-check`: the Dockerfile's own steps without Docker, and what they make at work, with nothing of this
# environment; as root, as in a pod. Minutes, and gigabytes in /var/tmp.
set -eu

here=$(dirname "$0")
python=${PYTHON:-python3}
work=$(mktemp -d -p /var/tmp) # not in /tmp, which a pod has empty
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cp "$here"/check_*.py "$here/as_in_pod.sh" "$work/"

run() { # as in a pod if we may
    if [ "$(id -u)" = 0 ]; then
        sh "$work/as_in_pod.sh" env -i PATH="$work/baton/bin:/usr/bin:/bin" HOME=/tmp TMPDIR=/tmp \
            PYTHONDONTWRITEBYTECODE=1 "$@"
    else
        echo "not root: the file system is not read-only" >&2
        env -i PATH="$work/baton/bin:/usr/bin:/bin" HOME="$work" PYTHONDONTWRITEBYTECODE=1 "$@"
    fi
}

if ! run "$($python -c 'import os, sys; print(os.path.realpath(sys.executable))')" -c ''; then
    echo "PYTHON: other users cannot run $python; set PYTHON to one that they can run, such as /usr/bin/python3" >&2
    exit 1
fi
# Build from a copy: setuptools leaves a build/ behind, and would reuse the files of an earlier one.
mkdir "$work/tree"
(cd "$here/../.." && git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --create) |
    tar --extract --directory "$work/tree"
sh "$work/tree/scripts/image/install.sh" wheel "$work/dist"
sh "$here/install.sh" dependencies "$work/baton"
sh "$here/install.sh" baton "$work/baton" "$work/dist"
run timeout 300 "$work/baton/bin/python" -I "$work/check_served.py"
run timeout 300 "$work/baton/bin/python" -I "$work/check_ray.py"
du -sh "$work/baton" | cut -f1
