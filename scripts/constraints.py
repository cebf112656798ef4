"""Writer of the tested versions, which are those of this environment: `make constraints`.

`constraints.txt` has the versions of all extras but `gpu`, for pip's --constraint. `scripts/image/constraints.txt` has
those of the images with the hashes of their files, as PyPI has them for x86-64 Linux and this Python. torch has no
hash, since its builds differ by index, and its libraries for GPUs are in neither file, since torch itself pins those:
Triton's version too, in the builds that have CUDA.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = "baton-serve"
TORCH = "torch"
TRITON = "triton"
DIRECTORY = Path(__file__).parent


def needed(name: str, extras: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """Return the requirements of a package and its chosen extras on this platform."""
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def versions(extra: str) -> dict[str, str]:
    """Return the public version, without a build label, of each package that an extra of Baton needs."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = list(needed(ROOT, frozenset({extra})))
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) not in seen:
            seen.add((name, extras))
            if name not in (ROOT, TRITON):
                found[name] = Version(distribution(name).version).public
            todo += needed(name, extras)
    return found


def hashes(pinned: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each package's file, from PyPI's metadata without downloading it."""
    elsewhere = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL")
    environment = {key: value for key, value in os.environ.items() if key not in elsewhere}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
    wanted = [f"{name}=={version}" for name, version in pinned.items()]
    report = subprocess.run(
        [*pip, "--only-binary", ":all:", "--report", "-", *wanted],
        env={**environment, "PIP_CONFIG_FILE": os.devnull},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    return {
        canonicalize_name(each["metadata"]["name"]): each["download_info"]["archive_info"]["hashes"]["sha256"]
        for each in json.loads(report)["install"]
    }


def lines(pinned: Mapping[str, str], known: Mapping[str, str]) -> str:
    """Return pip requirements with the known hashes."""
    made = "# Made by `make constraints` from an environment whose tests passed.\n"
    for name, version in sorted(pinned.items()):
        made += f"{name}=={version}" + (f" --hash=sha256:{known[name]}" if name in known else "") + "\n"
    return made


def main() -> None:
    """Write both files."""
    image = versions("cluster")
    known = hashes({name: version for name, version in image.items() if name != TORCH})
    (DIRECTORY / "image" / "constraints.txt").write_text(lines(image, known))
    (DIRECTORY.parent / "constraints.txt").write_text(lines(versions("dev"), {}))


if __name__ == "__main__":
    main()
