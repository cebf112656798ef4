"""`make release`: all files of a release, into dist/. Publishes nothing.

1. Refuse a tree that is dirty, names several versions, or has a version without a section of the changelog.
2. Build the sdist, and from it wheels for each CPython, on this processor and on aarch64; check them.
3. Package the chart, and write the bill of materials and the checksums.
"""

import argparse
import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import helm_python

from scripts.release.bill import write_bill
from scripts.release.checks import git, problems, version_of
from scripts.release.wheels import build_sdist, build_wheels, run, runnable

ROOT = Path(__file__).resolve().parents[2]
SUMS = "SHA256SUMS"


def checksums(directory: Path) -> str:
    """Return the checksums of a directory's files, as `sha256sum --check` reads them."""
    files = sorted(path for path in directory.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def release(root: Path, pythons: Sequence[str]) -> None:
    """Build everything into an empty dist/. Raises CalledProcessError and ValueError."""
    version, epoch, target = version_of(root), git(root, "log", "-1", "--format=%ct"), root / "dist"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    sdist = build_sdist(root, target, epoch)
    build_wheels(root, pythons, sdist, target, epoch)
    run([sys.executable, "-m", "twine", "check", "--strict", *target.iterdir()])
    helm_python.package(root / "helm/baton", destination=target, version=version, app_version=version)
    write_bill(root, version, target / f"baton_serve-{version}.cdx.json")
    (target / SUMS).write_text(checksums(target))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to release")
    parser.add_argument("pythons", nargs="+", help="interpreters, of which those that are installed get a wheel")
    options = parser.parse_args(argv)
    if found := problems(options.root):
        print("release: refused", *found, sep="\n  ", file=sys.stderr)
        return 1
    if not (pythons := runnable(options.pythons)):
        print("release: none of the interpreters is installed", file=sys.stderr)
        return 1
    release(options.root, pythons)
    print(*sorted(path.name for path in (options.root / "dist").iterdir()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
