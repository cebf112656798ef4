#!/bin/sh
# Run check_modules.py with a wheel for aarch64, in QEMU: check_aarch64.sh WHEEL
# Needs Debian's qemu-user-static, and a Debian that has the wheel's Python. Packages for arm64 are unpacked into a
# temporary directory; nothing is installed.
set -eu
wheel=$(realpath "$1")
scripts=$(dirname "$(realpath "$0")")
version=$(basename "$wheel" | sed 's/.*-cp3\([0-9]*\)-cp3.*/3.\1/')
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkdir -p "$directory/state/lists/partial" "$directory/cache/archives/partial" "$directory/root" "$directory/site"
: > "$directory/status"
cat > "$directory/apt.conf" << END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "$directory/state";
Dir::State::status "$directory/status";
Dir::Cache "$directory/cache";
APT::Sandbox::User "root";
END
export APT_CONFIG="$directory/apt.conf"
cd "$directory"
apt-get update -qq
apt-get download -qq "python$version-minimal" "libpython$version-minimal" "libpython$version-stdlib" libc6 libgcc-s1 \
    libstdc++6 zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libuuid1
for package in *.deb; do dpkg -x "$package" root; done
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version "$version" \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 \
    --dest numpy "numpy>=2,<3"
for file in numpy/*.whl "$wheel"; do python3 -m zipfile -e "$file" site; done
qemu-aarch64-static -L root -E PYTHONPATH=site "root/usr/bin/python$version" "$scripts/check_modules.py"
