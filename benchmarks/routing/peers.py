"""Environment of the peer routers."""

import subprocess
import sys
from pathlib import Path

SGLANG_ROUTER = "sglang-router==0.3.2"
DYNAMO = ("ai-dynamo-runtime==1.6.1", "ai-dynamo==1.6.1")
# Imports of Dynamo's frontend and runtime. Its package requires far more, which only its engines need.
DYNAMO_NEEDS = (
    "uvloop", "pydantic", "packaging", "msgspec", "pyzmq", "prometheus-client", "redis", "transformers", "tqdm",
    "zstandard", "certifi", "numpy", "aiohttp", "pyyaml", "orjson", "xxhash",
)  # fmt: skip


def ensure_environment(folder: Path) -> Path:
    """Return the Python of the peers' environment; create it in `folder` if it is missing."""
    python = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _install(python, SGLANG_ROUTER, *DYNAMO_NEEDS)
        _install(python, "--no-deps", *DYNAMO)
        done.touch()
    return python


def _install(python: Path, *packages: str) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
