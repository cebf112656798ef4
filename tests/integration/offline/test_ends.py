"""The end of programs with an LLM: no process and no directory is left."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.offline.programs import program
from tests.process_ends import wait_gone

pytestmark = pytest.mark.slow


async def test_a_program_that_ends_leaves_nothing() -> None:
    body = 'print(llm.generate("A list", SamplingParams(max_tokens=3), use_tqdm=False)[0].finished)'
    with program(body) as (process, directory, children):
        output, errors = await asyncio.to_thread(process.communicate)
        assert (process.returncode, output.strip(), errors) == (0, "True", "")
        await wait_gone(*children)
    assert not directory.exists()


async def test_a_killed_program_leaves_nothing_although_a_fork_of_it_lives() -> None:
    body = """
fork = os.fork()
if fork == 0:
    time.sleep(600)
print(fork, flush=True)
time.sleep(600)
"""
    with program(body) as (process, directory, children):
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        try:
            process.kill()
            await wait_gone(*children)
            async with asyncio.timeout(20):
                while directory.exists():  # removed after the last process has ended
                    await asyncio.sleep(0.02)
        finally:
            os.kill(fork, signal.SIGKILL)


async def test_ctrl_c_ends_the_requests_and_then_the_program() -> None:
    body = """
sys.stderr.write("begun\\n")
llm.generate(["A list"] * 500, SamplingParams(max_tokens=2000, ignore_eos=True), use_tqdm=False)
"""
    with program(body) as (process, directory, children):
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.to_thread(process.communicate)
        assert process.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in errors
        await wait_gone(*children)
    assert not directory.exists()


async def test_an_llm_that_is_garbage_leaves_nothing() -> None:
    body = """
import gc
del llm
gc.collect()
print("collected", flush=True)
time.sleep(600)
"""
    with program(body) as (process, directory, children):
        assert process.stdout is not None
        assert process.stdout.readline() == "collected\n"
        await wait_gone(*children)
        assert not directory.exists()


async def test_an_llm_whose_processes_were_killed_leaves_nothing() -> None:
    body = """
print("begun", flush=True)
sys.stdin.readline()
try:
    llm.generate("a", use_tqdm=False)
except Exception as error:
    print(type(error).__name__, flush=True)
llm.close()
"""
    with program(body) as (process, directory, children):
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "begun\n"
        [parent] = [each for each in children if "baton.offline" in each.cmdline()]
        parent.kill()
        await wait_gone(*children)
        output, errors = await asyncio.to_thread(process.communicate, "\n")
        assert (process.returncode, output, errors) == (0, "Ended\n", "")
    assert not directory.exists()


async def test_a_killed_program_whose_llm_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    start = "from baton import LLM; LLM(kv_cache_memory_bytes='900GiB')"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-c", start]
    with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL) as process:  # noqa: ASYNC220  # returns at once
        async with asyncio.timeout(60):
            while not (children := psutil.Process(process.pid).children()):
                await asyncio.sleep(0.01)
        process.kill()
    await wait_gone(*children)
    assert list(tmp_path.glob("baton-llm-*")) == []
