"""The commands of the first tutorial, run one after the other in a clone of the last commit."""

import asyncio
import re
import shutil
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from tests.integration.cloned_server import ROOT, clone, made_server, needs_clone

TUTORIAL = (ROOT / "docs" / "tutorials" / "laptop.md").read_text(encoding="utf-8")
HANDED_OVER = 193  # tokens, by the page
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
    *needs_clone,
]


def commands() -> list[str]:
    """Return the page's blocks of commands; each may use what the ones before it define."""
    return re.findall(r"^```sh\n(.*?)^```", TUTORIAL, re.DOTALL | re.MULTILINE)


async def outputs(blocks: list[str], directory: Path) -> list[str]:
    """Run the blocks in one bash, as in one terminal, and return the output of each."""
    mark = "--- the next block ---"
    script = f"\necho '{mark}'\n".join(blocks)
    process = await asyncio.create_subprocess_exec("bash", "-c", script, cwd=directory, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    return output.decode().split(f"{mark}\n")


async def test_the_commands_of_the_first_tutorial(tmp_path: Path) -> None:
    """The text after the failover is not compared: in bfloat16 it may differ, as the page says."""
    serve, *blocks = commands()
    assert serve.strip() == "make serve"
    directory = tmp_path / "baton"
    environment = clone(directory)
    async with made_server(directory, environment) as cluster:
        here = [block.replace("http://127.0.0.1:8000", cluster.url) for block in blocks]
        chat, handover, whole, killed, metrics = await outputs(here, directory)
    assert '"chat.completion"' in chat
    headers = dict(line.split(": ", 1) for line in handover.replace("\r", "").splitlines() if ": " in line)
    assert (headers["x-baton-prefill"], headers["x-baton-decode"]) == ("prefill-0", "decode-0")
    assert int(headers["x-baton-handed-over-tokens"]) == HANDED_OVER
    assert f"x-baton-handed-over-tokens: {HANDED_OVER}" in TUTORIAL
    texts = [(directory / name).read_text() for name in ("whole.txt", "interrupted.txt")]
    assert len(whole) > 1000
    assert min(map(len, texts)) > 1000, killed
    assert re.search(r"^baton:failovers_total\{.*\} [1-9]", metrics, re.MULTILINE), metrics
    assert re.search(r"^baton:workers_lost_total\{.*\} [1-9]", metrics, re.MULTILINE), metrics
