"""Access to `baton serve` by local users without credentials: only the router's open paths."""

import asyncio
import os
import shutil
import socket
import stat
import sys
from asyncio.subprocess import STDOUT, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
import pytest_asyncio
import torch

from baton.kvtransfer.base import PoolDescription, PoolIdentity
from baton.kvtransfer.endpoint import decode, encode
from baton.kvtransfer.errors import PeerRefused
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.tcp import transport as tcp
from baton.protos.doctor_pb2 import ProbeRequest
from baton.protos.doctor_pb2_grpc import DoctorStub
from baton.protos.worker_pb2 import (
    DescribeRequest,
    DrainRequest,
    LeaseRequest,
    PrefillRequest,
    RouterMessage,
    WatchRequest,
    WorkerDescription,
)
from baton.protos.worker_pb2_grpc import DecodeStub, KVSourceStub, PrefillStub, WorkerStub
from baton.rpc.pool_description import pool_from_proto
from benchmarks.server import free_port
from tests.unit.router.api_keys import TestKeys, bearer

HOST, NOBODY, DEADLINE_S = "127.0.0.1", 65534, 60.0
CACHE_SECRET = "the-secret-of-this-tests-cache-salts"
GIVEN_KEY = "sk-from-the-environment"

pytestmark = [pytest.mark.usefixtures("spawned_processes"), pytest.mark.asyncio(loop_scope="module")]


@dataclass(frozen=True)
class Served:
    """A cluster of `baton serve` whose router requires API keys."""

    process: psutil.Process
    router_port: int
    file_key: str
    logs: Path

    @property
    def ports(self) -> set[int]:
        """TCP ports on which its processes listen."""
        tree = [self.process, *self.process.children(recursive=True)]
        connections = [each for process in tree for each in process.net_connections("inet")]
        return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}

    def client(self, key: str | None = GIVEN_KEY) -> httpx.AsyncClient:
        headers = bearer(key) if key is not None else {}
        url = f"http://{HOST}:{self.router_port}"
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=DEADLINE_S, trust_env=False, verify=False)

    async def workers(self) -> list[dict[str, Any]]:
        """Return the workers as the router reports them."""
        async with self.client() as client:
            rows: list[dict[str, Any]] = (await client.get("/workers")).raise_for_status().json()["workers"]
            return rows


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    directory, port = tmp_path_factory.mktemp("served"), free_port()
    keys = TestKeys(directory)
    file_key = keys.add("tenant-of-the-file")
    flags = (f"--port={port}", f"--log-dir={directory / 'logs'}", "--log-level=debug", f"--api-keys-file={keys.path}")
    env = {**os.environ, "BATON_API_KEY": GIVEN_KEY, "BATON_CACHE_SECRET": CACHE_SECRET}
    console = directory / "console.log"
    with console.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "baton", "serve", *flags, "--protect-operations"),
            stdout=output,
            stderr=STDOUT,
            env=env,
        )
    try:
        await _ready(process, console)
        yield Served(psutil.Process(process.pid), port, file_key, directory)
    finally:
        if process.returncode is None:
            process.terminate()
        assert await process.wait() == 0, console.read_text()


async def _ready(process: Process, console: Path) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while "Ready after" not in console.read_text():
            assert process.returncode is None, console.read_text()
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_no_port_speaks_a_workers_grpc(served: Served) -> None:
    assert served.router_port in served.ports
    await asyncio.gather(*map(_no_worker_grpc, served.ports))


async def _no_worker_grpc(port: int) -> None:
    """Check that a port refuses every call to a worker."""
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        calls: list[Any] = [
            WorkerStub(channel).Describe(DescribeRequest(), timeout=10),
            WorkerStub(channel).Drain(DrainRequest(), timeout=10),
            DoctorStub(channel).Probe(ProbeRequest(), timeout=10),
            WorkerStub(channel).Watch(WatchRequest(), timeout=10).read(),
            PrefillStub(channel).Prefill(PrefillRequest(), timeout=10).read(),
            KVSourceStub(channel).Lease(LeaseRequest(), timeout=10).read(),
            DecodeStub(channel).Attach(iter([RouterMessage()]), timeout=10).read(),
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, grpc.aio.AioRpcError), (port, outcome)
            assert outcome.code() is grpc.StatusCode.UNAVAILABLE, (port, outcome)


async def test_all_other_ports_are_kv_ports_that_require_a_key(served: Served) -> None:
    described = [await _describe(row["address"]) for row in await served.workers()]
    pools = [pool_from_proto(each.pool) for each in described]
    endpoints = [decode(tcp.Endpoint, pool, tcp.NAME) for pool in pools]
    assert served.ports == {served.router_port, *(each.port for each in endpoints)}
    for pool, endpoint in zip(pools, endpoints, strict=True):
        assert len(endpoint.key) == 32
        for key in ("", "0" * 32, endpoint.key[:-1]):
            wrong = replace(pool, endpoints={tcp.NAME: encode(replace(endpoint, key=key))})
            refusal = await _refusal(wrong)
            assert endpoint.key not in refusal


async def _describe(address: str) -> WorkerDescription:
    async with grpc.aio.insecure_channel(address) as channel:
        description: WorkerDescription = await WorkerStub(channel).Describe(DescribeRequest(), timeout=10)
        return description


async def _refusal(pool: PoolDescription) -> str:
    """Return why a pool's owner refuses us."""
    memory = SharedPool()
    transport = create_transport("tcp", PoolIdentity("stranger", pool.fingerprint), memory, HOST)
    try:
        transport.register_pool(memory.allocate((1, pool.block_bytes), torch.uint8))
        with pytest.raises(PeerRefused) as caught:
            await transport.connect(pool)
        return str(caught.value)
    finally:
        await transport.close()
        memory.close()


async def test_other_users_cannot_connect_to_the_sockets(served: Served) -> None:
    for row in await served.workers():
        path = Path(row["address"].removeprefix("unix:"))
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.parent.stat().st_uid == os.getuid()
        assert _connect(path) == 0
        if os.getuid() == 0:
            assert _connect(path, NOBODY) != 0


def _connect(path: Path, uid: int | None = None) -> int:
    """Return the errno of connecting to a Unix socket, 0 for success; with `uid` in a subprocess as that user."""
    if (child := os.fork()) == 0:
        if uid is not None:
            os.setuid(uid)
        with socket.socket(socket.AF_UNIX) as sock:
            os._exit(sock.connect_ex(str(path)))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


async def test_operations_require_a_key(served: Served) -> None:
    async with served.client(None) as client:
        for path in ("/workers", "/pools", "/metrics", "/version", "/openapi.json"):
            assert (await client.get(path)).status_code == 401
        assert (await client.get("/docs")).status_code == 200  # the page has nothing of this router
        assert (await client.get("/health")).status_code == 200


async def test_no_log_no_page_and_no_command_line_has_a_key_or_the_secret(served: Served) -> None:
    secret = (GIVEN_KEY, served.file_key, CACHE_SECRET)
    pages = []
    for key in (GIVEN_KEY, served.file_key, served.file_key + "x", "sk-wrong"):
        async with served.client(key) as client:
            body = {"prompt": list(range(300, 340)), "max_tokens": 2, "cache_salt": "mine"}
            pages.append((await client.post("/v1/completions", json=body)).text)
            pages.append((await client.post("/v1/completions", json={"prompt": key, "max_tokens": -1})).text)
            pages += [(await client.get(path)).text for path in ("/workers", "/metrics", "/pools", "/openapi.json")]
    tree = [served.process, *served.process.children(recursive=True)]
    lines = [" ".join(process.cmdline()) for process in tree]
    logs = [path.read_text() for path in served.logs.rglob("*.log")]
    assert len(logs) == 4  # the console's, the router's and two workers'
    for text in (*pages, *lines, *logs):
        assert not [each for each in secret if each in text]


@pytest.mark.slow
async def test_a_worker_that_dies_after_its_sockets_were_removed_serves_again(served: Served) -> None:
    rows = {row["worker_id"]: Path(row["address"].removeprefix("unix:")) for row in await served.workers()}
    directory = rows["decode-0"].parent
    shutil.rmtree(directory)
    [worker] = [each for each in served.process.children() if "--worker-id=decode-0" in each.cmdline()]
    worker.kill()
    async with asyncio.timeout(DEADLINE_S):
        while not rows["decode-0"].exists() or _connect(rows["decode-0"]) != 0:
            await asyncio.sleep(0.1)
        while {row["state"] for row in await served.workers()} != {"ready"}:
            await asyncio.sleep(0.1)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    async with served.client() as client:
        answer = await client.post("/v1/completions", json={"prompt": list(range(300, 340)), "max_tokens": 2})
        assert answer.status_code == 200
