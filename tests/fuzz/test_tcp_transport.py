"""The TCP transport with hostile callers of a real server, and a real reader of hostile servers."""

import asyncio
import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from baton.kvtransfer.errors import PeerRefused, TransferError, TransportUnavailable
from baton.kvtransfer.tcp import frames as tcp_frames
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.mutations import damaged_bytes, damaged_json, json_values
from tests.fuzz.transport_rig import BLOCK_BYTES, DEADLINE_S, SEED, SHAPE, Rig, Talk, frame, talks
from tests.unit.kvtransfer.kv_peers import fill

DESTINATION = (9, 4, 5)
SOURCE = (0, 1, 2)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig("tcp")
    yield rig
    rig.close()


def request(*blocks: int) -> bytes:
    """Encode a request for blocks."""
    return tcp_frames.REQUEST.pack(len(blocks)) + b"".join(block.to_bytes(4, "little") for block in blocks)


def test_hostile_callers_leave_nothing_behind(fuzzing: Fuzzing, rig: Rig) -> None:
    hello = rig.hello()
    greeting = frame(hello)
    requests = st.lists(st.lists(st.integers(0, 20), max_size=5).map(lambda ids: request(*ids)), max_size=3)
    content = st.one_of(
        st.binary(max_size=200),
        damaged_bytes(greeting + request(0, 5) + request(15)),
        st.one_of(damaged_json(hello), json_values).map(frame),
        st.one_of(requests.map(b"".join), st.binary(max_size=40), damaged_bytes(request(1, 2))).map(
            lambda after: greeting + after
        ),
        st.integers(0, (1 << 32) - 1).map(lambda count: greeting + count.to_bytes(4, "little")),
    )

    async def talk(talk: Talk) -> bytes:
        received = b""
        reader, writer = await asyncio.open_connection(rig.address["host"], rig.address["port"])
        with suppress(ConnectionError):
            for piece in talk.pieces():
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
            while chunk := await reader.read(1 << 16):
                received += chunk
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        return received

    def check(hostile: Talk) -> None:
        rig.run(talk(hostile))

    fuzzing.run(talks(content, st.just(True)), check, 150)
    answer = rig.run(talk(Talk(greeting + request(5, 0), (), True)))
    assert answer.endswith(rig.cluster.pool[5].numpy().tobytes() + rig.cluster.pool[0].numpy().tobytes())
    assert rig.is_whole()
    rig.check_clean()


class HostileServer:
    """A server with a hostile response to the greeting and another to the request for blocks."""

    def __init__(self) -> None:
        self.welcome = self.response = Talk(b"", (), True)
        self.port = 0
        self._ended: set[asyncio.Task[None]] = set()

    async def start(self) -> asyncio.Server:
        """Start to listen."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            size = int.from_bytes(await reader.readexactly(4), "little")
            await reader.readexactly(size)
            await self._say(writer, self.welcome)
            if not self.welcome.ends:
                await reader.readexactly(4 + 4 * len(SOURCE))
                await self._say(writer, self.response)
                if not self.response.ends:
                    await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _say(self, writer: asyncio.StreamWriter, talk: Talk) -> None:
        for piece in talk.pieces():
            writer.write(piece)
            await writer.drain()


def test_hostile_servers_leave_nothing_behind(fuzzing: Fuzzing, rig: Rig) -> None:
    server = HostileServer()
    listening = rig.run(server.start())
    names = iter(range(1 << 60))

    async def read(welcome: Any, response: Talk) -> None:
        incarnation = f"peer-{next(names)}"
        content = {
            "incarnation": incarnation, "fingerprint": "model", "num_blocks": SHAPE[0], "block_bytes": BLOCK_BYTES,
        }  # fmt: skip
        server.welcome = Talk(frame(content), (), False) if welcome is None else welcome
        server.response = response
        endpoint = json.dumps({"host": "127.0.0.1", "port": server.port, "key": "k"}).encode()
        description = replace(rig.cluster.description, incarnation=incarnation, endpoints={"tcp": endpoint})
        transport = rig.cluster.transport
        fill(rig.cluster.pool, SEED)
        with suppress(TransferError):
            peer = await transport.connect(description)
            await transport.read(peer, SOURCE, DESTINATION, DEADLINE_S)
        await transport.quarantine.wait_clear(DESTINATION)
        for known in list(transport.choices):
            transport.forget(known)

    def check(talk: tuple[Any, Talk]) -> None:
        began_s = time.monotonic()
        rig.run(read(*talk))
        assert time.monotonic() - began_s < 4 * DEADLINE_S + 2
        assert rig.is_whole(except_for=DESTINATION)

    status = st.one_of(st.sampled_from([0, 1, 2, 0xFFFFFFFF]), st.integers(0, 0xFFFFFFFF))
    length = st.one_of(
        st.sampled_from([0, 1, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 1, 1 << 63, (1 << 64) - 1]), st.integers(0, 10_000)
    )
    blocks = bytes(range(256)) * (3 * BLOCK_BYTES // 256)
    body = st.one_of(st.binary(max_size=100), st.just(blocks), damaged_bytes(blocks), st.just(blocks + b"more"))
    responses = st.one_of(
        st.builds(lambda status, length, body: tcp_frames.RESPONSE.pack(status, length) + body, status, length, body),
        st.binary(max_size=50),
        damaged_bytes(tcp_frames.RESPONSE.pack(0, len(blocks)) + blocks),
    )
    ends = st.sampled_from([True, True, True, True, True, False])  # silence takes a whole deadline
    welcome = {
        "incarnation": "peer", "fingerprint": "model", "num_blocks": SHAPE[0], "block_bytes": BLOCK_BYTES,
        "refused": "no",
    }  # fmt: skip
    greetings = st.one_of(
        st.binary(max_size=100), damaged_json(welcome).map(frame), json_values.map(frame), damaged_bytes(frame(welcome))
    )
    fuzzing.run_all(
        [
            (st.tuples(st.none(), talks(responses, ends)), check),
            (st.tuples(talks(greetings, ends), talks(responses, ends)), check),
        ],
        50,
    )
    listening.close()
    rig.check_clean()


def test_a_lack_of_descriptors_makes_the_transport_unavailable(rig: Rig) -> None:
    async def connect() -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        endpoint = json.dumps({"host": "127.0.0.1", "port": 1, "key": "k"}).encode()
        description = replace(rig.cluster.description, incarnation="peer", endpoints={"tcp": endpoint})
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
        try:
            with pytest.raises(TransportUnavailable, match="no socket"):
                await rig.cluster.transport.connect(description)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    with ExitStack() as stack:  # the limit is on descriptor numbers, so all below it must be in use
        lowest = max(map(int, os.listdir("/proc/self/fd")))
        while (file := os.open("/dev/null", os.O_RDONLY)) < lowest:
            stack.callback(os.close, file)
        stack.callback(os.close, file)
        rig.run(connect())
    rig.check_clean()


def test_text_from_a_peer_is_truncated(rig: Rig) -> None:
    for content in ("x" * 60_000, "line\nline", ["x" * 9000] * 5, "\ud800"):
        server = HostileServer()
        listening = rig.run(server.start())
        server.welcome = Talk(frame({"refused": content}), (), True)
        endpoint = json.dumps({"host": "127.0.0.1", "port": server.port, "key": "k"}).encode()
        description = replace(rig.cluster.description, incarnation="peer", endpoints={"tcp": endpoint})
        with pytest.raises(PeerRefused) as raised:
            rig.run(rig.cluster.transport.connect(description))
        listening.close()
        assert len(str(raised.value)) < 2000
        assert str(raised.value).isprintable()
    rig.check_clean()


def test_garbled_endpoints_are_refused(fuzzing: Fuzzing, rig: Rig) -> None:
    hosts = ["127.0.0.1", "", "\0", "::1", "\ud800", "a" * 300, "[::1]", "fe80::1%nowhere", "127.0.0.1\n", 5]
    endpoints = st.one_of(
        st.binary(max_size=40),
        json_values.map(lambda value: json.dumps(value).encode()),
        st.builds(
            lambda host, port, key: json.dumps({"host": host, "port": port, "key": key}).encode(),
            st.sampled_from(hosts), st.sampled_from([0, -1, 65536, 1 << 40, "1", None, 1.5, True]), json_values,
        ),
        st.just(b"[" * 100_000),
    )  # fmt: skip
    numbers = st.sampled_from([0, 1, SHAPE[0], 1 << 32, -1])

    async def connect(endpoint: bytes, num_blocks: int) -> None:
        description = replace(
            rig.cluster.description, incarnation="peer", num_blocks=num_blocks, endpoints={"tcp": endpoint}
        )
        with pytest.raises(TransferError):
            await rig.cluster.transport.connect(description)

    def check(given: tuple[bytes, int]) -> None:
        rig.run(connect(*given))

    fuzzing.run(st.tuples(endpoints, numbers), check, 150)
    rig.check_clean()
