"""Unix sockets with short paths, which a restarted gRPC server takes over."""

import socket
import tempfile
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from baton.rpc.listening import listen
from baton.rpc.tls import Plaintext
from baton.rpc.unix_sockets import MAX_PARENT_CHARS, socket_parent


def test_sockets_are_in_the_temporary_directory_unless_its_path_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/job")
    assert socket_parent() == "/scratch/job"
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/" + "j" * MAX_PARENT_CHARS)
    assert socket_parent() == "/tmp"


@pytest.mark.parametrize("name", ["my dir", "a,b", "a%41", "a#b", "a?b", "ü"])
def test_sockets_avoid_paths_that_an_address_cannot_contain(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"/scratch/{name}")
    assert socket_parent() == "/tmp"


async def test_a_server_takes_over_the_socket_of_a_dead_one() -> None:
    with tempfile.TemporaryDirectory(dir=socket_parent()) as directory:
        path = Path(directory, "worker")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))  # leaves the file behind
        server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
        address = listen(server, Plaintext(), "127.0.0.1", 0, str(path))
        await server.start()
        assert address == f"unix:{path}"
        async with Plaintext().channel(address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await server.stop(None)
