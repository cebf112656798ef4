"""Tool loops of client libraries, which have an environment of their own, against the real server."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv" / "clients" / "bin" / "python"
SCRIPTS = ("agents_sdk", "langchain_openai_class", "llama_index_openai_like")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_tool_is_called_and_its_result_used(cluster_url: str, script: str) -> None:
    assert PYTHON.exists(), "the client libraries are not installed: `make test-all` installs them"
    path = ROOT / "tests" / "clients" / f"{script}.py"
    run = subprocess.run([PYTHON, path, cluster_url], capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
