"""One of several router processes leaves their shared port: connected clients lose nothing."""

import asyncio
import socket
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from baton.router.http import post_protocol
from baton.router.http.app import HttpApp
from baton.router.http.server import HttpServer
from baton.router.http.shared_socket import accept_waiting, shared_socket
from tests.unit.router.http.test_post_protocol import HEALTH, STREAM, Connection, connected, request
from tests.unit.router.http.test_slow_clients import unread_output
from tests.unit.router.rigs.running_router import DEADLINE_S, RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

JSON = {"content-type": "application/json"}


def listener() -> socket.socket:
    """A listening socket whose connections are not accepted."""
    shared = shared_socket("127.0.0.1", 0)
    shared.listen()
    return shared


def clients_of(shared: socket.socket, count: int) -> list[socket.socket]:
    return [socket.create_connection(shared.getsockname(), DEADLINE_S) for _ in range(count)]


def test_waiting_connections_are_accepted() -> None:
    with listener() as shared:
        clients = clients_of(shared, 3)
        waiting = accept_waiting(shared)
        assert [each.getpeername() for each in waiting] == [each.getsockname() for each in clients]
        assert not any(each.getblocking() for each in waiting)
        assert accept_waiting(shared) == []
    for each in (*clients, *waiting):
        each.close()


async def test_waiting_connections_are_served() -> None:
    server, shared = HttpServer(HttpApp({}, FastAPI(), unread_output())), listener()
    serving = asyncio.create_task(server.serve([shared]))
    await server.listening.wait()
    clients = clients_of(shared, 5)  # the event loop does not turn here, so nobody has accepted them
    leaving = asyncio.create_task(server.leave(shared, DEADLINE_S))
    for client in clients:
        connection = Connection(*await asyncio.open_connection(sock=client))
        connection.writer.write(HEALTH)
        status, headers, _ = await connection.answer()
        assert (status, headers["connection"]) == (404, "close")
        connection.writer.close()
    await leaving
    server.should_exit = True
    await serving


async def until_left(router: RunningRouter) -> None:
    """Wait until no process listens at the router's port."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                async with connected(router):
                    await asyncio.sleep(0.005)
            except OSError:
                return


def process(directory: Path) -> dict[str, object]:
    """Return options of one of two router processes, of which only this one runs."""
    return {"process": 0, "processes": 2, "group_dir": str(directory)}


@pytest.mark.parametrize("message", [request(), request(STREAM), HEALTH])
async def test_connected_clients_get_one_more_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: bytes
) -> None:
    monkeypatch.setattr(post_protocol, "LINGER_S", DEADLINE_S)
    async with (
        running_router(ScriptedWorker(), **process(tmp_path)) as router,
        connected(router) as new,
        connected(router) as begun,
        connected(router) as used,
    ):
        used.writer.write(HEALTH)
        assert "connection" not in (await used.answer())[1]
        begun.writer.write(message[:-1])
        router.stopping.set()
        await until_left(router)
        for connection, part in ((new, message), (begun, message[-1:]), (used, message)):
            connection.writer.write(part)
            status, headers, _ = await connection.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert await connection.reader.read() == b""


async def test_an_idle_connection_is_closed_while_requests_finish(tmp_path: Path) -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, **process(tmp_path)) as router, connected(router) as idle:
        streamed = asyncio.create_task(router.http.post("/v1/chat/completions", content=STREAM, headers=JSON))
        await until(lambda: bool(worker.commands))
        router.stopping.set()
        assert await idle.reader.read() == b""
        assert not streamed.done()
        worker.go_on.set()
        assert (await streamed).text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.ConnectError):
            await router.http.get("/health")
