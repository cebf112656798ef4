"""`baton serve --ray`: answers, and leaves nothing behind."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import STDOUT
from pathlib import Path

import httpx
import psutil

from benchmarks.server import free_port
from tests.integration.ray_cluster import command_line, left_of

START_S, END_S = 180.0, 60.0
BODY = {"prompt": list(range(300, 420)), "max_tokens": 8, "temperature": 0, "ignore_eos": True}


async def test_it_answers_and_leaves_no_process(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    logs = tmp_path / "logs"
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "baton", "serve", "--ray", "--port", str(port), "--dtype", "float32"),
            *("--drain-timeout-s", "2", "--log-dir", str(logs)),
            stdout=output,
            stderr=STDOUT,
            start_new_session=True,
        )
    started: list[psutil.Process] = []
    try:
        async with asyncio.timeout(START_S):
            while "Ctrl-C ends" not in printed.read_text():
                assert process.returncode is None, printed.read_text()
                await asyncio.sleep(0.1)
        started = psutil.Process(process.pid).children(recursive=True)
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            answer = await client.post("/v1/completions", json=BODY)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-baton-prefill"].startswith("prefill-")
            assert int(answer.headers["x-baton-handed-over-tokens"]) > 0
        assert any("raylet" in " ".join(command_line(each)) for each in started)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        await asyncio.wait_for(process.wait(), END_S)
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        left = await asyncio.to_thread(left_of, started, 20.0)
        for each in left:
            each.kill()
    assert left == []
    text = printed.read_text()
    assert process.returncode == 0, text
    assert f"Serving baton-bundled at {url} (1 prefill + 1 decode)" in text
    assert "Ending" in text
    assert "Traceback" not in text
    for log in logs.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()
