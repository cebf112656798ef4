"""Check of everything that Baton ships for known vulnerabilities; fails on a finding, or if the check is impossible.

Installed packages are compared with PyPI's advisories. Container images and embedded binaries (components.json) are not
listed there and are compared with the committed advisories.json. With `--fallback`, packages are compared with that
file too if PyPI's list cannot be read.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.metadata import distributions
from pathlib import Path

import requests
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
ADVISORIES = Path(__file__).with_name("advisories.json")
COMPONENTS = Path(__file__).with_name("components.json")
PYPI = "https://pypi.org"
PROBE = "/pypi/requests/2.19.0/json"  # a release with known vulnerabilities, because a mirror may list none
TIMEOUT_S = 15
OLD_DAYS = 90  # age at which the committed advisories need an update
OURS = "baton-serve"
IGNORED: Mapping[str, str] = {}  # reason why a vulnerability does not apply, by id


@dataclass(frozen=True, slots=True)
class Advisory:
    """A known vulnerability of a product."""

    product: str
    id: str
    fixed: tuple[str, ...]  # first fixed version of each branch
    since: str = "0"

    def has(self, version: Version) -> bool:
        """Whether the version is affected. In a branch without a fix, it is unless it is newer than all fixes."""
        fixed = [Version(each) for each in self.fixed]
        of_branch = [each for each in fixed if each.release[:2] == version.release[:2]]
        return Version(self.since) <= version < min(of_branch, default=max(fixed))


@dataclass(frozen=True, slots=True)
class Component:
    """A product that Baton ships, and the text in a file that sets its version."""

    product: str
    version: str
    file: str = ""  # empty: an installed package
    text: str = ""

    def __str__(self) -> str:
        return f"{self.product} {self.version}" + (f" ({self.file})" if self.file else "")


@dataclass(frozen=True, slots=True)
class AdvisoryList:
    """Committed advisories, as of a date."""

    date: date
    advisories: tuple[Advisory, ...]

    @classmethod
    def read(cls, path: Path) -> "AdvisoryList":
        """Read the list from a file."""
        values = json.loads(path.read_text(encoding="utf-8"))
        advisories = (Advisory(**{**each, "fixed": tuple(each["fixed"])}) for each in values["advisories"])
        return cls(date.fromisoformat(values["date"]), tuple(advisories))

    def check(self, components: Iterable[Component]) -> list[str]:
        """Return a line for each vulnerability of the components."""
        return [
            f"{each} has {advisory.id}, fixed in {', '.join(advisory.fixed)}"
            for each in components
            for advisory in self.advisories
            if advisory.product == each.product and advisory.id not in IGNORED and advisory.has(Version(each.version))
        ]

    def unknown(self, components: Iterable[Component]) -> list[str]:
        """Return a line for each component without any advisory, whose name may be wrong."""
        known = {each.product for each in self.advisories}
        return [f"{each}: no advisory names the product" for each in components if each.product not in known]


def read_components(path: Path) -> list[Component]:
    """Return the images and binaries of a file."""
    return [Component(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def stale(components: Iterable[Component], root: Path) -> list[str]:
    """Return the components whose files no longer have the listed version."""
    return [
        f"{each}: the file has no {each.text!r}; update {COMPONENTS.name}"
        for each in components
        if not re.search(re.escape(each.text) + r"(?!\.?\d)", (root / each.file).read_text(encoding="utf-8"))
    ]


def installed() -> list[Component]:
    """Return the installed packages, without local version labels such as +cpu, which PyPI does not have."""
    versions = {canonicalize_name(found.metadata["Name"]): found.version for found in distributions()}
    return [Component(name, each.partition("+")[0]) for name, each in sorted(versions.items()) if name != OURS]


def unreadable(pypi: str) -> str | None:
    """Return why PyPI's list cannot be read; None if it can."""
    try:
        answer = requests.get(pypi + PROBE, timeout=TIMEOUT_S)
        answer.raise_for_status()
        return None if answer.json().get("vulnerabilities") else f"{pypi + PROBE} lists no vulnerability"
    except (requests.RequestException, ValueError) as error:
        return str(error)


def ask_pypi(packages: Iterable[Component]) -> bool:
    """Print PyPI's findings, and return whether there are none. A package that PyPI lacks counts as a finding."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(f"{each.product}=={each.version}" for each in packages))
        file.flush()
        asked = ("-r", file.name, "--disable-pip", "--no-deps", "--strict", "--progress-spinner=off", "--desc=off")
        ignored = [f"--ignore-vuln={each}" for each in IGNORED]
        return subprocess.run([sys.executable, "-m", "pip_audit", *asked, *ignored], check=False).returncode == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--fallback", action="store_true", help="use the committed advisories if PyPI's list is unreadable"
    )
    parser.add_argument("--pypi", default=PYPI, help="URL of PyPI")
    parser.add_argument("--components", type=Path, default=COMPONENTS, help="list of images and binaries")
    options = parser.parse_args(argv)
    listed, components, packages = AdvisoryList.read(ADVISORIES), read_components(options.components), installed()
    print(f"audit: {len(components)} images and binaries, {len(listed.advisories)} advisories of {listed.date}")
    if (age := (datetime.now(UTC).date() - listed.date).days) > OLD_DAYS:
        print(f"audit: warning: {ADVISORIES.name} is {age} days old; renew it")
    found = [*stale(components, ROOT), *listed.unknown(components), *listed.check(components)]
    is_good = True
    print(f"audit: {len(packages)} packages", *(f"{each} is ignored: {why}" for each, why in IGNORED.items()), sep="\n")
    if (reason := unreadable(options.pypi)) is None:
        is_good = ask_pypi(packages)
    elif options.fallback:
        print(f"audit: warning: PyPI's list is unreadable: {reason}")
        print(f"audit: warning: packages are compared with {ADVISORIES.name} alone, which has a few of {listed.date}")
        found += listed.check(packages)
    else:
        found.append(f"PyPI's list is unreadable: {reason}; --fallback compares with {ADVISORIES.name} alone")
    for each in found:
        print(f"audit: {each}")
    return 0 if is_good and not found else 1


if __name__ == "__main__":
    sys.exit(main())
