"""`baton drain --host`: all workers of a host, as for the end of a pod."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.integration.membership.registry_router import registry_router, wait_ready_workers, wait_view
from tests.integration.membership.test_registry_redis import MODEL, complete, start_workers
from tests.redis_server import redis_server


async def drain(*options: str, command: str = "drain") -> tuple[int | None, str]:
    """Run the command; return its exit status and output."""
    argv = (sys.executable, "-m", "baton", command, *options)
    process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.slow
async def test_all_workers_of_a_host_are_drained_and_no_others(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server(tmp_path / "redis"))
        file = tmp_path / "url"
        file.write_text(f"{server.url}\n")
        where = ("--registry-file", str(file), "--timeout-s", "1")
        status, output = await drain("--host", "127.0.0.1", *where)
        assert status == 1
        assert f"the registry of {file} lists no worker at 127.0.0.1; a worker that cannot reach" in " ".join(
            output.split()
        )
        await start_workers(stack, server.url, tmp_path, "prefill", "decode")
        client = await stack.enter_async_context(registry_router(server.url, MODEL, tmp_path))
        await wait_ready_workers(client, "prefill-0", "decode-1")
        none = f"the registry of {file} lists no worker at 127.0.0.9\n"
        assert await drain("--host", "127.0.0.9", "--missing-ok", *where) == (0, none)
        await complete(client)
        status, output = await drain("--host", "127.0.0.1", *where)
        assert status == 3
        assert "is the last decode worker that accepts requests" in output
        status, output = await drain("--force", "--host", "127.0.0.1", *where)
        assert status == 0
        assert [line.partition("@")[0] for line in output.splitlines()] == ["decode-1", "prefill-0"]
        assert output.count("is drained") == 2
        await wait_view(client, lambda view: {each["state"] for each in view["workers"]} == {"drained"})

        status, output = await drain("--host", "127.0.0.1", "--registry-file", str(file), command="undrain")
        assert (status, output.count("accepts requests again")) == (0, 2)
        await wait_ready_workers(client, "prefill-0", "decode-1")

        await server.kill()
        status, output = await drain("--host", "127.0.0.1", *where)
        assert status == 1
        assert "cannot be read" in output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give either one WORKER"),
        (("--host", "127.0.0.1"), "--host and --registry-file must be given together"),
        (("decode-0", "--host", "127.0.0.1", "--registry-file", __file__), "give either one WORKER"),
        (("--host", "127.0.0.1", "--registry-file", __file__), "Error"),
        (("decode-0", "--missing-ok"), "--missing-ok needs --host"),
    ],
)
async def test_conflicting_options_are_reported(options: tuple[str, ...], words: str) -> None:
    status, output = await drain(*options)
    assert status in (1, 2)
    assert words in output
