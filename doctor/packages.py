"""Checks of the installed packages against Baton's requirements."""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from baton.doctor.finding import Finding, failure, ok, warning
from baton.extras import OPTIONAL_PACKAGES

DISTRIBUTION = "baton-serve"
NOTABLE = ("torch", "grpcio", "protobuf", "transformers", "tokenizers", "tiktoken", "redis")
OPTIONAL = tuple(package.distribution for package in OPTIONAL_PACKAGES)
REINSTALL = "install the versions that Baton asks for: make setup, or pip install --upgrade baton-serve"


def package_versions(distribution: str = DISTRIBUTION) -> dict[str, str]:
    """Return the installed versions of Python, the distribution, its requirements and the optional packages."""
    versions = {"python": platform.python_version()}
    for name in (distribution, *(requirement.name for requirement in _requirements(distribution)), *OPTIONAL):
        found = _version(name)
        if found is not None:
            versions[name] = found
    return versions


def check_packages(distribution: str = DISTRIBUTION) -> list[Finding]:
    """Check the requirements, and their own requirements, which a later installation may have broken."""
    if _version(distribution) is None:
        return [failure("package-missing", f"{distribution} is not installed as a package", REINSTALL)]
    findings: list[Finding] = []
    for requirement in [*_requirements(distribution), *_installed_extras(distribution)]:
        findings += _check(distribution, requirement)
        for inner in _requirements(requirement.name):
            findings += [
                warning("package-conflict", finding.found, finding.remedy or REINSTALL)
                for finding in _check(requirement.name, inner)
            ]
    return findings or [ok("packages", _summary(distribution))]


def check_extras() -> list[Finding]:
    """Return a finding for each missing optional package, with its purpose and the command to install it."""
    missing = [
        ok("extra-missing", f"{package.distribution} is not installed, optional: {package.purpose} ({package.command})")
        for package in OPTIONAL_PACKAGES
        if not package.is_installed
    ]
    return missing or [ok("extras", "all optional packages are installed")]


def _check(owner: str, requirement: Requirement) -> Iterator[Finding]:
    found = _version(requirement.name)
    if found is None:
        yield failure("package-missing", f"{owner} needs {requirement.name}, which is not installed", REINSTALL)
    elif not requirement.specifier.contains(found, prereleases=True):
        text = f"{owner} needs {requirement.name} {requirement.specifier}, {found} is installed"
        yield failure("package-incompatible", text, REINSTALL)


def _requirements(distribution: str, extra: str = "") -> list[Requirement]:
    """Return a distribution's requirements on this platform and for an extra; none if it is not installed."""
    try:
        declared = [Requirement(text) for text in requires(distribution) or ()]
    except PackageNotFoundError:
        return []
    return [each for each in declared if each.marker is None or each.marker.evaluate({"extra": extra})]


def _installed_extras(distribution: str) -> list[Requirement]:
    """Return the requirements on those optional packages that are installed."""
    return [
        requirement
        for package in OPTIONAL_PACKAGES
        if _version(package.distribution) is not None
        for requirement in _requirements(distribution, package.extra)
        if requirement.name == package.distribution
    ]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _summary(distribution: str) -> str:
    versions = package_versions(distribution)
    names = ("python", distribution, *NOTABLE, *OPTIONAL)
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
