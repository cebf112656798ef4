"""The image: its recipe is sound, copies what there is, and the wheel that it installs is whole and runs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import hcl2
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helm.dockerfile import ROOT, copied, is_sent, stages, whole

SCRIPTS = ROOT / "scripts" / "image"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CHART = ROOT / "helm" / "baton"
TARGETS = ("cpu", "cuda")


def constraints() -> dict[str, str]:
    """Version by name."""
    lines = (SCRIPTS / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def bake() -> dict[str, dict[str, object]]:
    """The targets of docker-bake.hcl."""
    with (ROOT / "docker-bake.hcl").open(encoding="utf-8") as file:
        content = hcl2.load(file, serialization_options=hcl2.SerializationOptions(strip_string_quotes=True))
    return {name: body for each in content["target"] for name, body in each.items()}


@pytest.mark.parametrize("path", ["Dockerfile"])
def test_hadolint_has_no_complaint(path: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([hadolint, ROOT / path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_everything_copied_exists_and_reaches_the_build() -> None:
    for source in copied():
        assert (ROOT / source).exists(), source
        assert is_sent(source), source


def test_every_package_is_copied() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {pattern.rstrip("*") for pattern in patterns} <= copied()


@pytest.mark.parametrize(
    "path",
    [".git/config", ".venv/bin/python", "tests/helm/test_image.py", "shared/x", "router/native/x.so", "Makefile"],
)
def test_nothing_else_reaches_the_build(path: str) -> None:
    assert not is_sent(path)
    assert is_sent("router/native/prefix_index.cpp")
    assert is_sent("baton/bundled_model/model.safetensors")


@pytest.mark.parametrize("target", TARGETS)
def test_the_user_is_the_charts_and_no_name(target: str) -> None:
    [user] = [rest for word, rest in whole(target) if word == "USER"]
    security = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["podSecurity"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"  # runAsNonRoot does not know names
    assert whole(target)[-1] == ("USER", user)


def test_kuberay_finds_what_it_starts_pods_with() -> None:
    text = "\n".join(f"{word} {rest}" for word, rest in whole("cpu"))
    assert re.search(r"apt-get install [^&]*\bwget\b", text)
    assert "/etc/profile.d/baton.sh" in text
    assert "ENV PATH=/opt/baton/bin:$PATH" in text
    assert [rest for word, rest in whole("cpu") if word == "ENTRYPOINT"] == []  # pods bring a command of their own


def test_bake_builds_the_stages_under_the_names_that_the_chart_asks_for() -> None:
    targets = bake()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    assert version == PYPROJECT["project"]["version"]
    assert f'default = "{version}"' in (ROOT / "docker-bake.hcl").read_text(encoding="utf-8")
    for name in TARGETS:
        assert targets[name]["target"] == name
        assert name in stages()
        assert targets[name]["inherits"] == ["image"]
        assert targets[name]["tags"] == [f"${{REGISTRY}}baton:${{VERSION}}-{name}"]
    assert targets["image"]["attest"] == ["type=sbom", "type=provenance,mode=max"]
    declared = set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
    args = targets["image"]["args"]
    assert isinstance(args, dict)
    assert set(args) <= declared


def test_every_requirement_is_pinned_to_what_it_allows() -> None:
    pinned = constraints()
    for text in PYPROJECT["project"]["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text
    assert f"torch=={pinned['torch']}" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build sees of the tree."""
    directory = tmp_path_factory.mktemp("context")

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if not is_sent(str((Path(folder) / name).relative_to(ROOT)))]

    for source in copied():
        target = directory / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=left_out)
        else:
            shutil.copy(ROOT / source, target)
    return directory


@pytest.fixture(scope="module")
def installed(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed that the Dockerfile's own step builds; it checks the wheel's files itself."""
    work = tmp_path_factory.mktemp("installed")
    env = {**os.environ, "PYTHON": sys.executable}
    step = ["sh", context / "scripts" / "image" / "install.sh", "wheel", work / "dist"]
    subprocess.run(step, check=True, env=env, cwd=work, capture_output=True, text=True)
    [wheel] = (work / "dist").glob("*.whl")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        work / "site",
        wheel,
    ]
    subprocess.run(pip, check=True, cwd=work)
    return work / "site"


def run(site: Path, *argv: str) -> str:
    """What an interpreter prints that has the installed wheel before the tree."""
    env = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-P", *argv]
    return subprocess.run(command, check=True, env=env, cwd=site, capture_output=True, text=True).stdout


def test_the_wheel_has_its_compiled_modules_and_no_sources_of_ours(installed: Path) -> None:
    script = "import router.native.prefix_index as p, engine.native.block_hash as b; print(p.__file__, b.__file__)"
    assert run(installed, "-c", script).count(str(installed)) == 2
    assert not (installed / "tests").exists()


@pytest.mark.parametrize("command", ["", "serve", "router", "worker", "drain", "status"])
def test_entry_points_of_the_wheel_run(installed: Path, command: str) -> None:
    assert "Usage" in run(installed, "-m", "baton", *filter(None, [command]), "--help")


def test_a_wheel_that_lacks_something_is_refused() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from check_wheel import problems; print(problems(sys.argv[2:]))"
    )
    names = ["baton/__main__.py", "tests/x.py"]
    said = subprocess.run(
        [sys.executable, "-c", script, SCRIPTS, *names], check=True, capture_output=True, text=True
    ).stdout
    assert "no file router/native/prefix_index" in said
    assert "tests/x.py does not belong there" in said
