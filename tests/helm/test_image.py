"""The image: its recipe is sound, copies what there is, and the wheel that it installs is whole and runs."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import hcl2
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from baton.doctor.machine import ENGINE_MODULES
from tests.helm.dockerfile import ROOT, copied, is_sent, stages, whole
from tests.marks import slow_case

SCRIPTS = ROOT / "scripts" / "image"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CHART = ROOT / "helm" / "baton"
TARGETS = ("cpu", "cuda")
IMAGE_EXTRAS = ("nixl", "ray", "kubernetes", "grammar")


def constraints(name: str = "constraints.txt") -> dict[str, tuple[str, str]]:
    """Version and hash by name; the hash is empty where there is none."""
    lines = (SCRIPTS / name).read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"([-a-z0-9]+)==(\S+?)(?: --hash=sha256:([0-9a-f]{64}))?", line) for line in lines[1:]]
    return {each[1]: (each[2], each[3] or "") for each in found if each is not None}


def bake() -> dict[str, dict[str, object]]:
    """The targets of docker-bake.hcl."""
    with (ROOT / "docker-bake.hcl").open(encoding="utf-8") as file:
        content = hcl2.load(file, serialization_options=hcl2.SerializationOptions(strip_string_quotes=True))
    return {name: body for each in content["target"] for name, body in each.items()}


@pytest.mark.parametrize("path", ["Dockerfile"])
def test_hadolint_finds_nothing(path: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([hadolint, ROOT / path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_everything_copied_exists_and_reaches_the_build() -> None:
    for source in copied():
        assert (ROOT / source).exists(), source
        assert is_sent(source), source


def test_every_package_is_copied() -> None:
    links = {path.name for path in (ROOT / "baton").iterdir() if path.is_symlink()}
    assert "router" in links
    assert {"baton", *links} <= copied()


@pytest.mark.parametrize(
    "path",
    [".git/config", ".venv/bin/python", "tests/helm/test_image.py", "shared/x", "router/index/native/x.so", "Makefile"],
)
def test_nothing_else_reaches_the_build(path: str) -> None:
    assert not is_sent(path)
    assert is_sent("router/index/native/prefix_index.cpp")
    assert is_sent("baton/bundled_model/model.safetensors")


@pytest.mark.parametrize("target", TARGETS)
def test_the_user_is_the_charts_numeric_id(target: str) -> None:
    [user] = [rest for word, rest in whole(target) if word == "USER"]
    security = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["podSecurity"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"  # runAsNonRoot does not know names
    assert whole(target)[-1] == ("USER", user)


def test_the_image_has_the_programs_that_kuberay_starts() -> None:
    text = "\n".join(f"{word} {rest}" for word, rest in whole("cpu"))
    assert re.search(r"apt-get install [^&]*\bwget\b", text)
    assert "/etc/profile.d/baton.sh" in text
    assert "ENV PATH=/opt/baton/bin:$PATH" in text
    assert [rest for word, rest in whole("cpu") if word == "ENTRYPOINT"] == []  # pods bring a command of their own


def test_the_gpu_image_has_a_compiler_for_triton() -> None:
    def installs(target: str) -> set[str]:
        runs = [rest for word, rest in whole(target) if word == "RUN"]
        return {name for run in runs for found in re.findall(r"apt-get install ([^&]*)", run) for name in found.split()}

    assert installs("cuda") - installs("cpu") == {"gcc", "libc6-dev"}  # and a C library's headers


@pytest.mark.slow
def test_bake_builds_the_image_names_of_the_chart() -> None:
    targets = bake()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    assert version == PYPROJECT["project"]["version"]
    assert f'default = "{version}"' in (ROOT / "docker-bake.hcl").read_text(encoding="utf-8")
    for name in TARGETS:
        assert targets[name]["target"] == name
        assert name in stages()
        assert targets[name]["inherits"] == ["image"]
        assert targets[name]["tags"] == [f"${{REGISTRY}}baton:${{VERSION}}-{name}"]
    labels = {name.removeprefix("org.opencontainers.image.") for name in targets["image"]["labels"]}
    assert labels >= {"title", "description", "licenses", "version", "revision", "created", "source", "base.name"}
    assert targets["image"]["attest"] == ["type=sbom", "type=provenance,mode=max"]
    declared = set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
    args = targets["image"]["args"]
    assert isinstance(args, dict)
    assert set(args) <= declared


def test_every_requirement_is_pinned_to_an_allowed_version() -> None:
    pinned = constraints()
    extras = PYPROJECT["project"]["optional-dependencies"]
    for text in [*PYPROJECT["project"]["dependencies"], *(each for name in IMAGE_EXTRAS for each in extras[name])]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)][0]), text


def test_every_file_except_torchs_is_pinned_by_hash() -> None:
    lines = (SCRIPTS / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert len(constraints()) == len(lines) - 1 > 100
    assert [name for name, (_, digest) in constraints().items() if not digest] == ["torch"]
    recipe = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert 'TORCH_SHA256="${TORCH_CPU_SHA256}"' in recipe
    assert 'FLASHINFER_SHA256="${FLASHINFER_SHA256}"' in recipe
    assert bake()["cpu"]["args"] == {"TORCH_CPU_SHA256": "TORCH_CPU_SHA256"}
    assert bake()["cuda"]["args"] == {"FLASHINFER_SHA256": "FLASHINFER_SHA256"}


def test_the_gpu_files_are_pinned_by_hash_and_fit_the_others() -> None:
    gpu, others = constraints("gpu.txt"), constraints()
    assert all(digest for _, digest in gpu.values())
    assert gpu.keys() & others.keys() == {"torch"}
    assert gpu["torch"][0] == others["torch"][0]
    [flashinfer] = [
        Requirement(each) for each in PYPROJECT["project"]["optional-dependencies"]["gpu"] if "python" in each
    ]
    assert flashinfer.specifier.contains(gpu[flashinfer.name][0])
    assert any(name.startswith("nvidia-nccl-") for name in gpu)


def write_wheel(directory: Path, name: str, requires: str = "") -> str:
    """A package with nothing in it; its hash."""
    file = directory / f"{name}-1.0-py3-none-any.whl"
    information = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    with ZipFile(file, "w") as wheel:
        wheel.writestr(f"{information}/METADATA", metadata)
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Installation:
    """An index of three packages, of which ours needs one and torch another, and the Dockerfile's own steps."""

    folder: Path
    digests: dict[str, str]

    def write(self, name: str, *lines: str) -> None:
        """Write a list of pinned files."""
        (self.folder / name).write_text("# made\n" + "\n".join(lines) + "\n")

    def pin(self, name: str, digest: str | None = None) -> str:
        """Return a line with the file's hash or another one."""
        return f"{name}==1.0 --hash=sha256:{digest or self.digests[name]}"

    def run(self, *step: str, **more: str) -> tuple[str | None, set[str]]:
        """Return the error, if there is one, and the installed packages."""
        env = {"PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
        result = subprocess.run(
            ["sh", self.folder / "install.sh", step[0], self.folder / "venv", *step[1:]],
            env={**os.environ, **env, "PIP_FIND_LINKS": str(self.folder), **more},
            capture_output=True,
            text=True,
            check=False,
        )
        found = (self.folder / "venv").glob("lib/python*/site-packages/*.dist-info")
        return (result.stderr if result.returncode else None), {each.name.partition("-1.0")[0] for each in found}


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    digests = {name: write_wheel(tmp_path, name) for name in ("needed", "cudalib", "flashinfer_jit_cache")}
    digests["torch"] = write_wheel(tmp_path, "torch", "Requires-Dist: cudalib\n")
    shutil.copy(SCRIPTS / "install.sh", tmp_path)
    return Installation(tmp_path, digests)


WRONG = "0" * 64


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", [slow_case(""), slow_case("rest"), "torch"])
def test_a_file_with_another_hash_is_not_installed(installation: Installation, spoilt: str) -> None:
    needed = installation.pin("needed", WRONG if spoilt == "rest" else None)
    installation.write("constraints.txt", needed, "torch==1.0")
    torch = WRONG if spoilt == "torch" else installation.digests["torch"]
    error, installed = installation.run("dependencies", TORCH_SHA256=torch)
    if spoilt:
        assert error is not None
        assert "DO NOT MATCH THE HASHES" in error
        assert ("needed" if spoilt == "rest" else "torch") not in installed
    else:
        assert error is None
        assert installed == {"needed", "torch", "cudalib"}


@pytest.mark.parametrize("spoilt", [slow_case(""), slow_case("cudalib"), "torch"])
def test_the_gpu_files_are_installed_by_hash(installation: Installation, spoilt: str) -> None:
    installation.write("constraints.txt", installation.pin("needed"), "torch==1.0")
    names = ("cudalib", "torch")
    installation.write("gpu.txt", *(installation.pin(name, WRONG if name == spoilt else None) for name in names))
    error, installed = installation.run("dependencies", "gpu")
    if spoilt:
        assert error is not None
        assert "DO NOT MATCH THE HASHES" in error
        assert spoilt not in installed
    else:
        assert error is None
        assert installed == {"needed", "torch", "cudalib"}


@pytest.mark.slow
def test_the_kernels_have_the_version_of_flashinfer(installation: Installation) -> None:
    installation.write("constraints.txt", installation.pin("needed"), "torch==1.0")
    assert installation.run("dependencies")[0] is None
    installation.write("gpu.txt", "flashinfer-python==2.0 --hash=sha256:0")
    error, _ = installation.run("kernels")
    assert error is not None
    assert "flashinfer-jit-cache==2.0" in error
    installation.write("gpu.txt", "flashinfer-python==1.0 --hash=sha256:0")
    error, _ = installation.run("kernels", FLASHINFER_SHA256=WRONG)
    assert error is not None
    assert "DO NOT MATCH THE HASHES" in error
    error, installed = installation.run("kernels", FLASHINFER_SHA256=installation.digests["flashinfer_jit_cache"])
    assert error is None
    assert "flashinfer_jit_cache" in installed


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
def wheel(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the Dockerfile's own step builds; it checks the wheel's files itself."""
    work = tmp_path_factory.mktemp("wheel")
    env = {**os.environ, "PYTHON": sys.executable}
    step = ["sh", context / "scripts" / "image" / "install.sh", "wheel", work / "dist"]
    subprocess.run(step, check=True, env=env, cwd=work, capture_output=True, text=True)
    [made] = (work / "dist").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where that wheel is installed."""
    work = tmp_path_factory.mktemp("installed")
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


@pytest.mark.slow
def test_everything_in_the_wheel_is_below_one_package(wheel: Path, installed: Path) -> None:
    with ZipFile(wheel) as archive:
        roots = {name.partition("/")[0] for name in archive.namelist()}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"baton"}
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"baton", "bin"}


@pytest.mark.slow
def test_twine_accepts_the_wheel(wheel: Path) -> None:
    check = [sys.executable, "-m", "twine", "check", "--strict", wheel]
    result = subprocess.run(check, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_the_wheel_has_compiled_modules_and_no_native_sources(installed: Path) -> None:
    modules = ("baton.router.index.native.prefix_index", *ENGINE_MODULES)
    script = "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]))"
    assert run(installed, "-c", script, *modules).count(str(installed)) == len(modules)
    assert not (installed / "tests").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", "serve", "router", "worker", "drain", "status"])
def test_entry_points_of_the_wheel_run(installed: Path, command: str) -> None:
    assert "Usage" in run(installed, "-m", "baton", *filter(None, [command]), "--help")


def test_a_wheel_that_lacks_something_is_refused() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from check_wheel import problems; print(problems(sys.argv[2:]))"
    )
    names = ["baton/__main__.py", "tests/x.py", "router/__init__.py"]
    said = subprocess.run(
        [sys.executable, "-c", script, SCRIPTS, *names], check=True, capture_output=True, text=True
    ).stdout
    assert "no file baton/router/index/native/prefix_index" in said
    assert all(f"no file {name.replace('.', '/')}" in said for name in ENGINE_MODULES)
    assert "tests/x.py does not belong there" in said
    assert "router/__init__.py does not belong there" in said
