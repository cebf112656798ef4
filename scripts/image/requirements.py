"""Prints what a pyproject.toml requires, one requirement a line, for pip."""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path) -> list[str]:
    """The project's dependencies as they stand there."""
    found: list[str] = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]))))
