"""Prints the version and the file's hash of all that Baton needs as it is installed here: `make image-constraints`.

The hashes are those of the files that PyPI has for this platform (x86-64 Linux) and Python. torch has none, for its
builds differ by index; nor are its own libraries for a GPU among them: torch itself pins those.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = "baton-serve"
TORCH = "torch"


def needed(name: str, extras: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """What a package and the chosen extras of it require on this platform."""
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def versions() -> dict[str, str]:
    """The public version of each package, without which build of it is installed."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = list(needed(ROOT))
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) not in seen:
            seen.add((name, extras))
            found[name] = Version(distribution(name).version).public
            todo += needed(name, extras)
    return found


def hashes(pinned: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each package's file; asks PyPI and no other index, and downloads nothing."""
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


def main() -> None:
    """Prints them as pip's requirements."""
    pinned = versions()
    known = hashes({name: version for name, version in pinned.items() if name != TORCH})
    print("# What the images hold. Made by `make image-constraints` from an environment whose tests passed.")
    for name, version in sorted(pinned.items()):
        print(f"{name}=={version}" + (f" --hash=sha256:{known[name]}" if name != TORCH else ""))


if __name__ == "__main__":
    main()
