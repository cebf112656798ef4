"""Prints the versions, as pip's constraints, of all that Baton needs as it is installed here: `make image-constraints`.

torch's own libraries for a GPU are not among them where torch is a build without: torch itself pins those.
"""

from collections.abc import Iterator
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = "baton"


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


if __name__ == "__main__":
    print("# Versions in the images. Made by `make image-constraints` from an environment whose tests passed.")
    for name, version in sorted(versions().items()):
        print(f"{name}=={version}")
