"""The README's commands, run as a new user would, in a clone of the last commit."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton.deployment.local.ports import free_ports
from tests.tested_versions import differences

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(900)
READY_TIMEOUT_S = 600  # includes the compilation of the native modules


README = (ROOT / "README.md").read_text()
NOT_RUN = "<!-- Not run by the test of this page: "  # in front of a block; the reason follows


def readme_commands() -> list[str]:
    """Return the README's shell blocks, without those that are marked as not run."""
    blocks = re.findall(r"^([^\n]*)\n```sh\n(.*?)```", README, re.DOTALL | re.MULTILINE)
    return [command for line, command in blocks if not line.startswith(NOT_RUN)]


def readme_block(language: str) -> str:
    """Return the README's only block in a language."""
    [block] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(block)


def kv_headers(response: str) -> list[str]:
    """Return the status line and Baton's headers of a response that `curl -i` printed."""
    head = response.replace("\r\n", "\n").partition("\n\n")[0].strip().splitlines()
    return [line for line in head if line.startswith(("HTTP/", "x-baton-"))]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Create a clone with an environment that has the dependencies, but not Baton."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, so there is nothing to clone")
    directory = tmp_path / "baton"
    assert differences() == {}, "run make setup: pip would replace the linked packages"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(directory)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(directory / ".venv")], check=True)
    inner = sysconfig.get_path("purelib", vars={"base": str(directory / ".venv")})
    outer = Path(sysconfig.get_path("purelib"))
    for entry in Path(inner).iterdir():  # older versions than ours
        if entry.name.startswith("setuptools"):
            shutil.rmtree(entry)
    for entry in outer.iterdir():  # all distributions except Baton
        link = Path(inner) / entry.name
        if "baton" not in entry.name and not entry.name.startswith("pip") and not link.exists():
            link.symlink_to(entry)
    return directory


@contextmanager
def running(command: str, directory: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in a new session, which is interrupted on exit, as by Ctrl-C."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, shell=True, cwd=directory, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)


def wait_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the command reports that it is ready."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while "Ready after" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"not ready: {log.read_text()}"
        time.sleep(0.2)


def run(command: str, directory: Path) -> str:
    """Return what a shell command prints."""
    return subprocess.run(command, shell=True, cwd=directory, capture_output=True, text=True, check=True).stdout


def test_every_readme_command_is_run_or_marked() -> None:
    assert len(readme_commands()) == 3, "a new block is run below, or says in front of it why it is not"
    assert README.count("```sh") == len(readme_commands()) + README.count(NOT_RUN)


@pytest.mark.slow
def test_the_readme_is_true(clone: Path, tmp_path: Path) -> None:
    serve, chat, status = readme_commands()
    assert serve.strip() == "make serve"
    [port] = free_ports("127.0.0.1", 1)
    log = tmp_path / "serve.log"
    with running(f"make serve PORT={port} PYTHON={sys.executable}", clone, log) as process:
        wait_ready(process, log)
        url = f"http://127.0.0.1:{port}"
        answer, again = (run(chat.replace("http://127.0.0.1:8000", url), clone) for _ in range(2))
        assert kv_headers(answer) == readme_block("text").splitlines()
        assert "x-baton-kv-transport: shared_memory" in kv_headers(answer), "the README shows no handover"
        assert '"finish_reason"' in answer
        content = re.search(r'"content":\s*"(.*?)(?<!\\)"', answer)
        assert content is not None
        assert len(re.findall(r"[A-Za-z]{2,}", content[1])) >= 3, f"no words in {content[1]!r}"
        cached = re.search(r"`x-baton-cached-tokens` is (\d+)", README)
        assert cached is not None
        assert f"x-baton-cached-tokens: {cached[1]}" in kv_headers(again)
        assert "x-baton-prefill: decode-0" in kv_headers(again), "it is short enough to be prefilled where it decodes"
        client = readme_block("python").replace("http://127.0.0.1:8000", url)
        assert run(f"{sys.executable} -c '{client}'", clone).strip() == "baton-bundled"
        table = run(f"{status.strip()} --url {url}", clone)
        assert "prefill-0" in table
        assert "decode-0" in table
        pids = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True).stdout.split()
        assert pids
    assert "Traceback" not in log.read_text(), log.read_text()
    leftover = subprocess.run(["pgrep", "-f", str(clone)], capture_output=True, text=True).stdout.split()
    assert leftover == [], "processes were left behind"
    assert shutil.which("make") is not None
    steps = [line for line in log.read_text().splitlines() if line.startswith("Step ")]
    assert len(steps) == 4, "the installation says what it does and how far it is"
    assert not (clone / ".venv" / ".dev").exists(), "serving needs no test tools"
    again = subprocess.run(["make", "--dry-run", "serve"], cwd=clone, capture_output=True, text=True, check=True)
    assert "install" not in again.stdout
