"""The commands of docs/tutorials/laptop.md, run as a reader would; `make serve` is run by test_newcomer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from baton.deployment.local.ports import free_ports
from tests.integration.clients.test_newcomer import ROOT, running, wait_ready

PAGE = (ROOT / "docs" / "tutorials" / "laptop.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_has_the_blocks_that_are_run() -> None:
    assert BLOCKS[0] == "make serve\n"
    assert len(BLOCKS) == 6


@pytest.mark.slow
def test_the_tutorial_is_true(tmp_path: Path) -> None:
    [port] = free_ports("127.0.0.1", 1)
    log = tmp_path / "serve.log"
    with running(f"{sys.executable} -m baton serve --port {port}", ROOT, log) as process:
        wait_ready(process, log)

        def run(*blocks: str) -> str:
            script = "".join(blocks).replace(":8000", f":{port}")
            return subprocess.run(
                ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
            ).stdout

        chat, handover, ask, kill, counts = BLOCKS[1:]
        assert '"finish_reason":"stop"' in run(chat)
        [shown] = re.findall(r"```text\n(x-baton.*?)```", PAGE, re.DOTALL)
        assert shown.strip().splitlines() == re.findall(r"x-baton-.*", run(handover))
        assert run(ask, kill).endswith("The text is the same.\n")
        assert set(run(counts).splitlines()) >= {
            'baton:failovers_total{model_name="baton-bundled"} 1.0',
            'baton:workers_lost_total{model_name="baton-bundled",role="decode"} 1.0',
            'baton:process_restarts_total{name="decode-0"} 1.0',
        }
