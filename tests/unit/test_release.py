"""Releases: one version everywhere, what is refused, and the files; the wheels in a slow test, from a clone."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.specifiers import SpecifierSet

from scripts.release.__main__ import SUMS, checksums
from scripts.release.bill import bill
from scripts.release.checks import problems, version_of, versions
from scripts.release.cross import AARCH64, ELF_MACHINE, cross_environment, foreign_modules, is_cross_compiler
from scripts.release.wheels import TOOLS, runnable

ROOT = Path(__file__).parents[2]
FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.3"\n',
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-02\n",
    "helm/baton/Chart.yaml": "version: 1.2.3\nappVersion: 1.2.3\n",
    "docker-bake.hcl": 'variable "VERSION" {\n  default = "1.2.3"\n}\n',
}


def git(tree: Path, *words: str) -> None:
    author = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "tag.gpgSign=false")
    subprocess.run(["git", *author, *words], cwd=tree, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a committed tree that can be released."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--allow-empty", "--message", "change")


def test_wheel_chart_and_images_have_one_version() -> None:
    assert set(versions(ROOT).values()) == {version_of(ROOT)} == {metadata.version("baton-serve")}
    named = ("docs/installation.md", "docs/kubernetes.md", "examples/compose/compose.yaml", "scripts/kind.sh")
    for name in named:
        assert version_of(ROOT) in (ROOT / name).read_text(encoding="utf-8"), name


def test_classifiers_and_wheels_are_of_the_pythons_that_are_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    required = SpecifierSet(project["project"]["requires-python"])
    minors = [minor for minor in range(30) if f"3.{minor}.0" in required]
    named = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["project"]["classifiers"]))
    released = re.search(r"^RELEASE_PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(each) for each in named] == minors
    assert released is not None
    assert released[1].split() == [f"python3.{minor}" for minor in minors]
    assert project["tool"]["cibuildwheel"]["build"].split() == [f"cp3{minor}-manylinux*" for minor in minors]


def test_a_committed_tree_with_one_version_can_be_released(tree: Path) -> None:
    assert problems(tree) == []
    git(tree, "tag", "v1.2.3")
    assert problems(tree) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        (
            "CHANGELOG.md",
            "## [1.2.3] - 2030-01-02",
            "## [1.2.3]",
            "CHANGELOG.md has no section `## [1.2.3] - YYYY-MM-DD`",
        ),
        ("helm/baton/Chart.yaml", "appVersion: 1.2.3", "appVersion: 1.2.2", "appVersion is 1.2.2, not 1.2.3"),
        ("docker-bake.hcl", "VERSION", "VERSIONS", "docker-bake.hcl: VERSION is none, not 1.2.3"),
    ],
)
def test_another_version_is_refused(tree: Path, name: str, old: str, new: str, problem: str) -> None:
    (tree / name).write_text(FILES[name].replace(old, new))
    commit(tree)
    [found] = problems(tree)
    assert problem in found


def test_a_dirty_tree_and_a_used_tag_are_refused(tree: Path) -> None:
    (tree / "new.py").touch()
    git(tree, "config", "status.showUntrackedFiles", "no")  # which the user may have set
    [found] = problems(tree)
    assert found.endswith("commit or remove:\n?? new.py")
    git(tree, "tag", "v1.2.3")
    commit(tree)
    assert problems(tree) == ["the tag v1.2.3 is another commit; raise the version"]


def test_the_script_refuses_before_it_builds(tree: Path) -> None:
    (tree / "new.py").touch()
    argv = [sys.executable, "-m", "scripts.release", "--root", str(tree), "python3"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "release: refused\n  the tree is dirty" in done.stderr
    assert not (tree / "dist").exists()


def test_only_interpreters_that_run_get_a_wheel(capsys: pytest.CaptureFixture[str]) -> None:
    assert runnable([sys.executable, "python3.99"]) == [sys.executable]
    assert "python3.99 is not installed: no wheel for it" in capsys.readouterr().out


def test_modules_of_another_processor_are_found(tmp_path: Path) -> None:
    x86_64 = 62
    with ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name, machine in (("baton/one.so", AARCH64), ("baton/other.so", x86_64)):
            wheel.writestr(name, ELF_MACHINE.pack(b"\x7fELF", machine) + b"code")
        wheel.writestr("baton/third.so", b"of another format, as long as a header")
        wheel.writestr("baton/module.py", b"")
    assert foreign_modules(tmp_path / "a.whl") == ["baton/other.so", "baton/third.so"]


def test_an_environment_without_the_compiler_builds_for_this_processor_alone(tmp_path: Path) -> None:
    assert not is_cross_compiler(tmp_path / "python")
    assert not is_cross_compiler(Path(sys.executable))


def test_tools_are_installed_where_the_compiler_is_not_to_be_had(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nif [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi\n'
        'case "$*" in *cross*) exit 1 ;; esac\n'
    )
    python.chmod(0o755)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    argv = ["make", "-C", str(tmp_path), "-f", str(ROOT / "Makefile"), f"PYTHON={python}", ".venv/release/.done"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ziglang cannot be installed" in done.stdout
    assert (tmp_path / ".venv/release/.done").exists()


def test_the_environment_of_a_cross_build_names_the_other_processor() -> None:
    with cross_environment(Path("python"), sys.executable) as environment:
        suffix = f".cpython-3{sys.version_info.minor}-aarch64-linux-gnu.so"
        assert environment["SETUPTOOLS_EXT_SUFFIX"] == suffix
        assert environment["_PYTHON_HOST_PLATFORM"] == "linux-aarch64"
        assert environment["CXX"] == "python -m ziglang c++ -target aarch64-linux-gnu.2.28"
        headers = Path(environment["CPPFLAGS"].removeprefix("-I"))
        assert [each.name for each in headers.iterdir()] == ["aarch64-linux-gnu"]
    assert not headers.exists()


def test_the_bill_has_every_package_of_the_images() -> None:
    text = (ROOT / "scripts/image/constraints.txt").read_text(encoding="utf-8")
    made = json.loads(bill(text, "1.2.3"))  # which validates it
    assert made["metadata"]["component"]["purl"] == "pkg:pypi/baton-serve@1.2.3"
    packages = {each["name"]: each for each in made["components"]}
    assert len(packages) == text.count("==")
    assert packages["redis"]["hashes"][0]["alg"] == "SHA-256"
    [depends] = [each for each in made["dependencies"] if each["ref"] == "pkg:pypi/baton-serve@1.2.3"]
    assert len(depends["dependsOn"]) == len(packages)


def test_the_bill_has_packages_that_are_not_installed() -> None:
    [package] = json.loads(bill("none-such==1.0\n", "1.2.3"))["components"]
    assert (package["purl"], "licenses" in package) == ("pkg:pypi/none-such@1.0", False)


def test_sha256sum_accepts_the_checksums(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    (tmp_path / SUMS).write_text(checksums(tmp_path))
    assert [line.split()[1] for line in (tmp_path / SUMS).read_text().splitlines()] == ["a.tar.gz", "b.whl"]
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (TOOLS / "auditwheel").exists(), reason="make release has never installed its tools")
def test_a_clone_is_released(tmp_path: Path) -> None:
    tree, version = tmp_path / "tree", version_of(ROOT)
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(tree))
    changes = tree / "CHANGELOG.md"
    changes.write_text(
        changes.read_text(encoding="utf-8").replace("## [Unreleased]", f"## [{version}] - 2030-01-02", 1)
    )
    commit(tree)
    argv = [sys.executable, "-m", "scripts.release", "--root", str(tree), sys.executable]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name for path in (tree / "dist").iterdir()}
    wheels = [name for name in names if name.endswith(".whl")]
    assert all("-manylinux_2_" in name for name in wheels)
    if is_cross_compiler(TOOLS / "python"):
        [foreign] = [name for name in wheels if name.endswith("_aarch64.whl")]
        if shutil.which("qemu-aarch64-static") is not None:
            check = ["sh", "scripts/release/check_aarch64.sh", str(tree / "dist" / foreign)]
            emulated = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
            assert emulated.stdout == "aarch64: attention ['plain'], products []: as numpy\n", emulated.stderr
        wheels.remove(foreign)
    assert len(wheels) == 1
    assert {name for name in names if not name.endswith(".whl")} == {
        *(f"baton_serve-{version}.tar.gz", f"baton-{version}.tgz", f"baton_serve-{version}.cdx.json", SUMS),
    }
