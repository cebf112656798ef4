"""Requirements, read from real metadata on disk."""

from pathlib import Path

import pytest

from baton.doctor.finding import Finding, Level
from baton.doctor.packages import check_packages, package_versions


def install(directory: Path, name: str, version: str, *requires: str) -> None:
    """Write the metadata of an installed package."""
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


def bad(findings: list[Finding]) -> list[tuple[str, Level]]:
    return [(finding.check, finding.level) for finding in findings]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)  # type: ignore[no-untyped-call]  # not typed in pytest
    return tmp_path


def test_installed_packages_are_listed() -> None:
    versions = package_versions()
    assert {"python", "baton-serve", "torch", "grpcio", "protobuf", "tiktoken"} <= versions.keys()
    assert "pytest" not in versions  # an extra's requirement


def test_all_requirements_met_is_one_finding(site: Path) -> None:
    install(site, "doctored", "1.0", "doctored-inner>=2", 'doctored-extra>=1; extra == "dev"')
    install(site, "doctored-inner", "2.1+cpu", "doctored>=1")
    (finding,) = check_packages("doctored")
    assert finding.level is Level.OK
    assert "doctored 1.0" in finding.found


def test_missing_or_old_packages_are_named(site: Path) -> None:
    install(site, "doctored", "1.0", "doctored-inner>=2", "doctored-absent>=1")
    install(site, "doctored-inner", "1.9")
    findings = check_packages("doctored")
    assert bad(findings) == [("package-incompatible", Level.FAILURE), ("package-missing", Level.FAILURE)]
    assert "doctored needs doctored-inner >=2, 1.9 is installed" in findings[0].found


def test_a_broken_requirement_of_a_requirement_is_a_conflict(site: Path) -> None:
    install(site, "doctored", "1.0", "doctored-inner>=2")
    install(site, "doctored-inner", "2.0", "doctored<1")
    assert bad(check_packages("doctored")) == [("package-conflict", Level.WARNING)]


def test_a_missing_distribution_fails() -> None:
    assert bad(check_packages("doctored-nowhere")) == [("package-missing", Level.FAILURE)]
