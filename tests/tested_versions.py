"""The versions of constraints.txt, and whether this environment has them."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[1]


def pins(path: str = "constraints.txt") -> dict[str, str]:
    """Versions by name."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return dict(re.findall(r"^([-a-z0-9]+)==(\S+)", text, re.MULTILINE))


def differences() -> dict[str, str]:
    """The versions of this environment that are not the tested ones."""
    found = {name: _installed(name) for name in pins()}
    return {name: installed for name, installed in found.items() if installed != pins()[name]}


def _installed(name: str) -> str:
    try:
        return Version(version(name)).public
    except PackageNotFoundError:
        return "none"
