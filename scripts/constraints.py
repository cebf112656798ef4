"""Writer of the tested versions, which are those of this environment: `make constraints`.

`constraints.txt` has the versions of all extras but `gpu`, for pip's --constraint. `scripts/image/constraints.txt` has
those of the images with the hashes of their files, as PyPI has them for x86-64 Linux and this Python. torch has no
hash, since its builds differ by index. `scripts/image/gpu.txt` has the files that the CUDA image needs in addition:
PyPI's torch, which is the CUDA build, CUDA's libraries, Triton and FlashInfer. pip resolves these versions from torch's
and FlashInfer's requirements; no test has run with them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from tempfile import NamedTemporaryFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = "baton-serve"
TORCH = "torch"
TRITON = "triton"
FLASHINFER = "flashinfer-python==0.7.2"
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


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A package's version and the SHA-256 of its file; "" if any file of that version is allowed."""

    version: str
    sha256: str = ""


def resolved(wanted: Iterable[str], *options: str) -> dict[str, PinnedFile]:
    """Return what pip would install from PyPI into an empty environment."""
    elsewhere = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL")
    environment = {key: value for key, value in os.environ.items() if key not in elsewhere}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    report = subprocess.run(
        [*pip, "--only-binary", ":all:", "--report", "-", *options, *wanted],
        env={**environment, "PIP_CONFIG_FILE": os.devnull},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    return {
        canonicalize_name(each["metadata"]["name"]): PinnedFile(
            each["metadata"]["version"], each["download_info"]["archive_info"]["hashes"]["sha256"]
        )
        for each in json.loads(report)["install"]
    }


def pins(versions: Mapping[str, str]) -> list[str]:
    """Return pip requirements of exactly these versions."""
    return [f"{name}=={version}" for name, version in versions.items()]


def image_files(versions: Mapping[str, str]) -> dict[str, PinnedFile]:
    """Return the files of all images; torch has no hash."""
    others = {name: version for name, version in versions.items() if name != TORCH}
    return {**resolved(pins(others), "--no-deps"), TORCH: PinnedFile(versions[TORCH])}


def gpu_files(versions: Mapping[str, str]) -> dict[str, PinnedFile]:
    """Return the additional files of the CUDA image, and torch's."""
    with NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(pins(versions)))
        constraints.flush()
        found = resolved([f"{TORCH}=={versions[TORCH]}", FLASHINFER], "--constraint", constraints.name)
    return {name: file for name, file in found.items() if name == TORCH or name not in versions}


def lines(files: Mapping[str, PinnedFile], origin: str) -> str:
    """Return pip requirements with the known hashes."""
    made = f"# Made by `make constraints` {origin}.\n"
    for name, file in sorted(files.items()):
        made += f"{name}=={file.version}" + (f" --hash=sha256:{file.sha256}" if file.sha256 else "") + "\n"
    return made


def main() -> None:
    """Write all files."""
    tested = "from an environment whose tests passed"
    image = versions("cluster")
    everything = {name: PinnedFile(version) for name, version in versions("dev").items()}
    (DIRECTORY / "image" / "constraints.txt").write_text(lines(image_files(image), tested))
    (DIRECTORY / "image" / "gpu.txt").write_text(lines(gpu_files(image), "as pip resolves them"))
    (DIRECTORY.parent / "constraints.txt").write_text(lines(everything, tested))


if __name__ == "__main__":
    main()
