"""Clients that do not read: their requests hold no places, and their unread output is limited."""

import asyncio
import socket
from contextlib import AsyncExitStack, suppress

import pytest

from baton.protos import worker_pb2
from baton.router import app
from baton.router.config import RouterConfig
from baton.router.http import server as http_server
from tests.faults.unread import NUM_COMPLETIONS, RECEIVE_BYTES, Path, open_windows, unread_stream, unread_streams
from tests.marks import slow_except
from tests.unit.router.rigs.running_router import DEADLINE_S, RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

USUAL = (Path.PLAIN, Path.GRPC)
ALL_PATHS = pytest.mark.parametrize("path", slow_except(Path, USUAL), ids=[path.value for path in Path])
STREAMS = pytest.mark.parametrize("path", [Path.PLAIN, Path.GRPC], ids=["http", "grpc"])
NUM_TOKENS = 8
SEND_BYTES = 1 << 13  # of the kernel's buffer of a connection: little of an answer is out of the router's hands


class BulkWorker(ScriptedWorker):
    """A worker that sends the second and all later tokens of a completion at once."""

    def _step(self, command: worker_pb2.GenerateCommand, tokens: list[int], is_first: bool) -> worker_pb2.RequestDelta:
        delta = super()._step(command, tokens, is_first)
        while not is_first and not delta.finish_reason:
            delta.MergeFrom(super()._step(command, tokens, is_first))
        return delta


def quick_worker() -> BulkWorker:
    worker = BulkWorker()
    worker.script = lambda token_ids, sampling: 300 + len(token_ids)
    return worker


def address(router: RunningRouter, path: Path) -> str:
    return router.grpc_address if path is Path.GRPC else router.url.removeprefix("http://")


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = app._bind

    def bind_small(config: RouterConfig) -> socket.socket:
        listener = bind(config)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        return listener

    monkeypatch.setattr(app, "_bind", bind_small)


async def metric(router: RunningRouter, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels."""
    text = (await router.http.get("/metrics")).text
    lines = (line for line in text.splitlines() if line.startswith((f"baton:{name}{{", f"baton:{name} ")))
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(each in line for each in wanted))


async def until_metric(router: RunningRouter, name: str, least: float, **labels: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await metric(router, name, **labels) < least:
            await asyncio.sleep(0.01)


async def until_idle(router: RunningRouter) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await router.http.get("/workers")).json()["router"]["inflight"]:
            await asyncio.sleep(0.01)


@ALL_PATHS
async def test_clients_that_do_not_read_block_no_other_request(path: Path) -> None:
    worker = quick_worker()
    async with (
        running_router(worker, max_inflight=2 * NUM_COMPLETIONS) as router,
        unread_streams(address(router, path), path, NUM_TOKENS),
    ):
        await until(lambda: len(worker.commands) == 2 * NUM_COMPLETIONS)
        answer = await router.http.post(
            "/v1/completions", json={"prompt": "hello", "n": NUM_COMPLETIONS, "max_tokens": 2}
        )
        assert answer.status_code == 200
        await until_idle(router)
        assert await metric(router, "router_unread_bytes") > 0
        assert await metric(router, "router_slow_clients_total") == 0
        assert not worker.aborted


@ALL_PATHS
async def test_the_deadline_releases_places_of_unread_requests(path: Path) -> None:
    worker = ScriptedWorker()
    worker.max_model_len, worker.script = 100_000, lambda token_ids, sampling: 300
    async with (
        running_router(worker, default_timeout_s=0.4) as router,
        unread_stream(address(router, path), path, max_tokens=24_000, num_completions=2),
    ):
        await until(lambda: len(worker.commands) > 0)
        await until(lambda: len(worker.aborted) == len(worker.commands))
        await until_idle(router)
        assert await metric(router, "router_slow_clients_total") == 0


@STREAMS
async def test_unread_output_of_one_request_is_bounded(path: Path) -> None:
    async with (
        running_router(quick_worker(), max_request_unread_bytes=1 << 16) as router,
        unread_stream(address(router, path), path, NUM_TOKENS) as client,
    ):
        await until_metric(router, "router_slow_clients_total", 1, reason="request")
        await until_idle(router)
        assert await metric(router, "router_unread_bytes") == 0
        if path is not Path.GRPC:
            await until_ended(client)


@STREAMS
@pytest.mark.parametrize("option", ["max_key_unread_bytes", "max_unread_bytes"])
async def test_unread_output_of_all_requests_is_limited(path: Path, option: str) -> None:
    options = {option: 1 << 18, "api_key": ("secret",)}
    reason = "key" if "key" in option else "router"
    async with running_router(quick_worker(), **options) as router, AsyncExitStack() as stack:
        router.http.headers["authorization"] = "Bearer secret"
        for _ in range(3):
            stream = unread_stream(address(router, path), path, NUM_TOKENS, authorization="Bearer secret")
            await stack.enter_async_context(stream)
        await until_metric(router, "router_slow_clients_total", 1, reason=reason)
        await until_idle(router)
        assert await metric(router, "router_unread_bytes") <= 1 << 18


@ALL_PATHS
async def test_a_client_that_reads_nothing_is_aborted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.admission.unread_output.STALL_S", 0.2)
    monkeypatch.setattr("baton.router.http.stall_watch.CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr("baton.router.admission.unread_output.LEAST_BYTES_PER_S", 1 << 20)
    async with (
        running_router(quick_worker()) as router,
        unread_stream(address(router, path), path, NUM_TOKENS) as client,
    ):
        await until_metric(router, "router_slow_clients_total", 1, reason="stall")
        await until_idle(router)
        assert await metric(router, "router_unread_bytes") == 0
        if path is not Path.GRPC:  # other calls of its connection go on
            await until_ended(client)


async def test_a_stalled_request_is_aborted_at_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.admission.unread_output.STALL_S", 0.2)
    monkeypatch.setattr("baton.router.http.stall_watch.CHECK_INTERVAL_S", 0.1)
    worker = ScriptedWorker()
    worker.max_model_len, worker.script = 100_000, lambda token_ids, sampling: 300
    async with (
        running_router(worker) as router,
        unread_stream(address(router, Path.PLAIN), Path.PLAIN, max_tokens=50_000, num_completions=1),
    ):
        await until(lambda: len(worker.aborted) == 1)
        await until_idle(router)
        assert [each["inflight"] for each in (await router.http.get("/workers")).json()["workers"]] == [0]


async def test_a_page_that_grows_with_the_workers_counts_too() -> None:
    worker = ScriptedWorker()
    worker.load.peer_transports.update({f"peer-{place}": "a" * 100 for place in range(4000)})
    loop = asyncio.get_running_loop()
    async with running_router(worker) as router:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", int(router.url.rpartition(":")[2])))
            await loop.sock_sendall(client, b"GET /workers HTTP/1.1\r\nhost: x\r\n\r\n")
            await until_metric(router, "router_unread_bytes", 10_000)
        async with asyncio.timeout(DEADLINE_S):
            while await metric(router, "router_unread_bytes"):
                await asyncio.sleep(0.01)


@STREAMS
async def test_the_drain_waits_for_output_that_is_being_delivered(path: Path) -> None:
    ending = b"[DONE]" if path is Path.PLAIN else b"grpc-status\x010"
    loop = asyncio.get_running_loop()
    async with (
        running_router(quick_worker()) as router,
        unread_stream(address(router, path), path, NUM_TOKENS) as client,
    ):
        await until_metric(router, "router_unread_bytes", 1)
        await until_idle(router)
        router.stopping.set()
        await asyncio.sleep(2 * http_server.STOP_GRACE_S)  # a client that is late, but not too late
        if path is Path.GRPC:
            await loop.sock_sendall(client, open_windows())
        received = b""
        async with asyncio.timeout(DEADLINE_S):
            while ending not in received[-(1 << 17) :]:
                part = await loop.sock_recv(client, 1 << 16)
                assert part
                received += part


async def until_ended(client: socket.socket) -> None:
    """Return once the router has ended the connection, whatever it sent before."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE_S):
        with suppress(ConnectionResetError):
            while await loop.sock_recv(client, 1 << 16):
                pass
