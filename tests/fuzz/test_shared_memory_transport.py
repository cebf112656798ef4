"""The shared-memory transport with hostile callers and owners: the pool's file must not leak, nor wrong files map."""

import asyncio
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import strategies as st

from baton.kvtransfer.base import PeerId, PoolDescription
from baton.kvtransfer.errors import PeerRefused, TransferError
from baton.kvtransfer.local_pool import unit_bytes_of
from baton.kvtransfer.shared_memory.pool import SEALS
from baton.kvtransfer.shared_memory.transport import host_id, map_blocks
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.mutations import damaged_bytes, damaged_json, json_values
from tests.fuzz.transport_rig import BLOCK_BYTES, DEADLINE_S, SHAPE, Rig, Talk, frame, talks

POOL_BYTES = SHAPE[0] * BLOCK_BYTES


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig("shared_memory")
    yield rig
    rig.close()


def test_hostile_callers_leave_nothing_behind(fuzzing: Fuzzing, rig: Rig) -> None:
    hello = rig.hello()
    content = st.one_of(
        st.binary(max_size=200),
        damaged_bytes(frame(hello)),
        st.one_of(damaged_json(hello), json_values).map(frame),
        st.binary(min_size=1, max_size=20).map(lambda after: frame(hello) + after),
    )

    async def talk(talk: Talk) -> int:
        """Send the bytes and return the number of files received."""
        loop = asyncio.get_running_loop()
        num_passed = 0
        with socket.socket(socket.AF_UNIX) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, f"\0{rig.address['name']}")
            with suppress(ConnectionError):
                for piece in talk.pieces():
                    await loop.sock_sendall(sock, piece)
                sock.shutdown(socket.SHUT_WR)
                while True:
                    try:
                        data, files, _, _ = socket.recv_fds(sock, 1 << 16, 4)
                    except BlockingIOError:
                        await asyncio.sleep(0.001)
                        continue
                    num_passed += len(files)
                    for file in files:
                        os.close(file)
                    if not data:
                        break
        return num_passed

    def check(hostile: Talk) -> None:
        num_passed = rig.run(talk(hostile))
        assert num_passed == 0 or begins_with_valid_hello(hostile.content, hello)

    fuzzing.run(talks(content, st.just(True)), check, 100)
    assert rig.run(talk(Talk(frame(hello), (), True))) == 1
    assert rig.is_whole()
    rig.check_clean()


def begins_with_valid_hello(content: bytes, hello: dict[str, Any]) -> bool:
    """Return whether the bytes begin with a valid Hello."""
    body = content[4 : 4 + int.from_bytes(content[:4], "little")]
    with suppress(ValueError):
        greeted = json.loads(body)
        if not isinstance(greeted, dict) or type(greeted.get("block_bytes")) is not int or not greeted.get("caller"):
            return False
        unit_bytes_of(BLOCK_BYTES, greeted["block_bytes"])  # other sizes are admitted if they share units with ours
        return all(greeted.get(name) == value for name, value in hello.items() if name not in ("block_bytes", "caller"))
    return False


def odd_file(kind: str, num_bytes: int, stack: ExitStack) -> int | None:
    """Open a file that is not a pool, or one that is, by `kind`; the stack closes it."""
    file: int
    match kind:
        case "none":
            return None
        case "pipe":
            file, other = os.pipe()
            stack.callback(os.close, other)
        case "null" | "zero":
            file = os.open(f"/dev/{kind}", os.O_RDONLY)
        case "directory":
            file = os.open("/", os.O_RDONLY)
        case "socket":
            file = socket.socket(socket.AF_UNIX).detach()
        case _:
            file = os.memfd_create("odd", os.MFD_ALLOW_SEALING)
            os.ftruncate(file, num_bytes)
            if kind == "sealed":
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
            elif kind == "half sealed":
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    stack.callback(os.close, file)
    return file


@dataclass(frozen=True)
class Owner:
    """A hostile owner of a pool: its greeting, the byte that it sends, and the file that it passes."""

    greeting: bytes | None  # None: a valid Welcome
    word: bytes
    kind: str  # of the file
    num_bytes: int
    num_blocks: int

    async def serve(self, listener: socket.socket, welcome: dict[str, Any]) -> None:
        """Serve one reader."""
        loop = asyncio.get_running_loop()
        with ExitStack() as stack, suppress(OSError):
            sock, _ = await loop.sock_accept(listener)
            stack.enter_context(sock)
            sock.setblocking(False)
            await loop.sock_recv(sock, 1 << 16)
            await loop.sock_sendall(sock, frame(welcome) if self.greeting is None else self.greeting)
            file = odd_file(self.kind, self.num_bytes, stack)
            if self.word:
                socket.send_fds(sock, [self.word], [] if file is None else [file])
            if self.kind == "silent":
                await loop.sock_recv(sock, 1)


async def read_from(owner: Owner, rig: Rig) -> None:
    """Read a block of the owner into block 3."""
    incarnation = name = f"baton-fuzz-{secrets.token_hex(8)}"
    welcome = {
        "incarnation": incarnation, "fingerprint": "model", "num_blocks": owner.num_blocks, "block_bytes": BLOCK_BYTES,
    }  # fmt: skip
    endpoint = json.dumps({"host": host_id(), "name": name, "key": "k"}).encode()
    description = replace(
        rig.cluster.description,
        incarnation=incarnation,
        num_blocks=owner.num_blocks,
        endpoints={"shared_memory": endpoint},
    )
    transport = rig.cluster.transport
    with socket.socket(socket.AF_UNIX) as listener:
        listener.setblocking(False)
        listener.bind(f"\0{name}")
        listener.listen()
        serving = asyncio.create_task(owner.serve(listener, welcome))
        with suppress(TransferError):
            peer = await transport.connect(description)
            await transport.read(peer, [0], [3], DEADLINE_S)
        transport.forget(PeerId(incarnation))
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def test_hostile_owners_leave_nothing_behind(fuzzing: Fuzzing, rig: Rig) -> None:
    def check(owner: Owner) -> None:
        rig.run(read_from(owner, rig))
        assert rig.is_whole(except_for=(3,))

    welcome = {"incarnation": "peer-0", "fingerprint": "model", "num_blocks": SHAPE[0], "block_bytes": BLOCK_BYTES}
    greetings = st.one_of(st.none(), st.none(), damaged_json(welcome).map(frame), damaged_bytes(frame(welcome)))
    kinds = ["none", "pipe", "null", "zero", "directory", "socket", "memory", "half sealed", "sealed", "silent"]
    sizes = st.sampled_from([0, 1, POOL_BYTES - 1, POOL_BYTES, POOL_BYTES, POOL_BYTES, POOL_BYTES + 1])
    words = st.sampled_from([b"m", b"m", b"u", b"", b"mm"])
    counts = st.sampled_from([SHAPE[0], SHAPE[0], 0, 1, 1 << 40, -1])
    fuzzing.run(st.builds(Owner, greetings, words, st.sampled_from(kinds), sizes, counts), check, 120)
    rig.check_clean()


@pytest.mark.parametrize("word", [b"m", b"u", b"x"])
def test_an_unexpected_file_is_closed(rig: Rig, word: bytes) -> None:
    rig.run(read_from(Owner(None, word, "zero", 0, SHAPE[0]), rig))
    rig.check_clean()


def test_an_empty_file_is_refused() -> None:
    with ExitStack() as stack:
        file = odd_file("sealed", 0, stack)
        assert file is not None
        with pytest.raises(PeerRefused, match="not a pool"):
            map_blocks(os.dup(file), PoolDescription("peer", "model", 0, BLOCK_BYTES, {}))


def test_garbled_endpoints_are_refused(fuzzing: Fuzzing, rig: Rig) -> None:
    endpoint = {"host": host_id(), "name": "baton-fuzz-nobody", "key": "k"}
    names = st.sampled_from(["", "\0", "a" * 200, "\ud800", "a\0b", "/etc/passwd"])
    endpoints = st.one_of(
        st.binary(max_size=40),
        json_values.map(lambda value: json.dumps(value).encode()),
        damaged_json(endpoint).map(lambda value: json.dumps(value).encode()),
        names.map(lambda name: json.dumps({**endpoint, "name": name}).encode()),
    )

    async def connect(endpoint: bytes) -> None:
        with pytest.raises(TransferError):
            await rig.cluster.transport.connect(
                replace(rig.cluster.description, incarnation="peer", endpoints={"shared_memory": endpoint})
            )

    fuzzing.run(endpoints, lambda endpoint: rig.run(connect(endpoint)), 80)
    rig.check_clean()
