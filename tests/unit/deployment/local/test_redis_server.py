"""The private Redis server."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import psutil
import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError

from baton.deployment.local.redis_server import HOST, NAMES, PrivateRedis
from tests.redis_server import require_redis_server

SCRIPT = """
import asyncio, pathlib, sys
from baton.deployment.local.redis_server import PrivateRedis

async def main():
    redis = PrivateRedis(pathlib.Path(sys.argv[1]))
    await redis.start()
    print(redis._process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_the_server_accepts_only_clients_with_its_url_and_is_restarted(tmp_path: Path) -> None:
    require_redis_server()
    server = PrivateRedis(tmp_path / "redis.log")
    await server.start()
    keeping = asyncio.create_task(server.keep())
    try:
        async with Redis.from_url(server.url) as client:
            assert await client.ping()
            [pid] = [each.pid for each in psutil.Process().children() if each.name() in NAMES]
            assert server.url.split(":")[2].split("@")[0] not in " ".join(psutil.Process(pid).cmdline())
            assert (await client.info("server"))["process_id"] == pid
            assert os.getpgid(pid) != os.getpgid(0)  # Ctrl-C in a terminal must not reach the server
            port = client.connection_pool.connection_kwargs["port"]
            async with Redis(host=HOST, port=port) as stranger:
                with pytest.raises(AuthenticationError):
                    await stranger.ping()
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(20):
                while not await responds(server.url):
                    await asyncio.sleep(0.02)
    finally:
        keeping.cancel()
        await server.end()
    assert not await responds(server.url)


@pytest.mark.slow
async def test_failing_restarts_are_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    require_redis_server()
    server = PrivateRedis(tmp_path / "redis.log")
    binary = server._binary
    await server.start()
    keeping = asyncio.create_task(server.keep())
    try:
        server._binary = Path("/bin/false")
        [pid] = [each.pid for each in psutil.Process().children() if each.name() in NAMES]
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            while "does not restart" not in caplog.text:
                assert not keeping.done()
                await asyncio.sleep(0.02)
            server._binary = binary
            while not await responds(server.url):
                await asyncio.sleep(0.02)
    finally:
        keeping.cancel()
        await server.end()


async def responds(url: str) -> bool:
    """Return whether a server responds."""
    async with Redis.from_url(url) as client:
        try:
            return bool(await client.ping())
        except (RedisError, OSError):
            return False


@pytest.mark.slow
async def test_the_server_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path) -> None:
    require_redis_server()
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, str(tmp_path / "redis.log"), stdout=PIPE)
    assert owner.stdout is not None
    server = psutil.Process(int(await asyncio.wait_for(owner.stdout.readline(), 30)))
    owner.kill()
    await owner.wait()
    _, left = await asyncio.to_thread(psutil.wait_procs, [server], 20)
    assert left == []
