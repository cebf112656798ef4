"""The handshake of two transports before any block moves: it checks the peer's identity and its block format.

The caller sends a Hello, the callee responds with a Welcome or a Refusal. Each is a JSON object, preceded by its length
in four bytes, little-endian.
"""

import asyncio
import json
import socket
from dataclasses import asdict, dataclass
from typing import Any

from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.errors import PeerLost, PeerRefused, truncated_repr, truncated_text
from baton.kvtransfer.local_pool import LocalPool, unit_bytes_of

PROTOCOL = "baton-kv/2"
MAX_FRAME_BYTES = 64 << 10
MAX_INCARNATION_CHARS = 200


@dataclass(frozen=True, slots=True)
class Hello:
    """The caller's request: the pool that it wants to read, its own identity and its own block size."""

    protocol: str
    key: str  # from the callee's endpoint: only peers that received the pool's description may read it
    incarnation: str  # the callee's
    caller: str  # the caller's incarnation, by which the callee groups its connections
    fingerprint: str
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The callee's description of its pool."""

    incarnation: str
    fingerprint: str
    num_blocks: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller that the callee has admitted."""

    incarnation: str
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why the callee refuses the caller."""

    refused: str


async def greet(sock: socket.socket, pool: LocalPool, peer: PoolDescription, key: str) -> None:
    """Run the caller's half of the handshake on a non-blocking socket. Raises PeerRefused or PeerLost."""
    ours = pool.identity
    hello = Hello(PROTOCOL, key, peer.incarnation, ours.incarnation, ours.fingerprint, pool.block_bytes)
    try:
        await _send(sock, hello)
        response = await _receive(sock)
    except (OSError, EOFError) as error:
        raise PeerLost(f"peer {peer.incarnation} closed the connection: {error}") from error
    except ValueError as error:
        raise PeerRefused(f"peer {peer.incarnation} responded with {error}") from error
    if "refused" in response:
        raise PeerRefused(f"peer {peer.incarnation} refused: {truncated_text(response['refused'])}")
    welcome = asdict(Welcome(peer.incarnation, peer.fingerprint, peer.num_blocks, peer.block_bytes))
    for what, described in welcome.items():
        if response.get(what) != described:
            raise PeerRefused(
                f"the peer's {what} is {truncated_repr(response.get(what))}, its description has {described!r}"
            )


async def admit(sock: socket.socket, pool: LocalPool, key: str) -> Caller:
    """Run the callee's half of the handshake on a non-blocking socket.

    Raises PeerRefused (after sending the caller a Refusal), or PeerLost.
    """
    try:
        hello = await _receive(sock)
        refusal = _refusal(hello, pool, key)
        if refusal is not None:
            await _send(sock, Refusal(refusal))
            raise PeerRefused(refusal)
        identity = pool.identity
        await _send(sock, Welcome(identity.incarnation, identity.fingerprint, pool.num_blocks, pool.block_bytes))
        return Caller(hello["caller"], hello["block_bytes"])
    except (OSError, EOFError) as error:
        raise PeerLost(f"the caller disconnected: {error}") from error
    except ValueError as error:
        raise PeerRefused(f"the caller sent {error}") from error


def _refusal(hello: dict[str, Any], pool: LocalPool, key: str) -> str | None:
    identity = pool.identity
    wanted = {
        "protocol": PROTOCOL,
        "key": key,
        "incarnation": identity.incarnation,
        "fingerprint": identity.fingerprint,
    }
    for what, ours in wanted.items():
        if hello.get(what) != ours:
            return (
                f"the {what} does not match"
                if what == "key"
                else f"{what} is {ours!r}, not {truncated_repr(hello.get(what))}"
            )
    caller = hello.get("caller")
    if not isinstance(caller, str) or not 0 < len(caller) <= MAX_INCARNATION_CHARS:
        return f"caller must be an incarnation, not {truncated_repr(caller)}"
    block_bytes = hello.get("block_bytes")
    if type(block_bytes) is not int:
        return f"block_bytes must be an integer, not {truncated_repr(block_bytes)}"
    try:
        unit_bytes_of(pool.block_bytes, block_bytes)
    except ValueError as error:
        return f"block_bytes does not fit: {error}"
    return None


async def _send(sock: socket.socket, message: Hello | Welcome | Refusal) -> None:
    body = json.dumps(asdict(message)).encode()
    await asyncio.get_running_loop().sock_sendall(sock, len(body).to_bytes(4, "little") + body)


async def _receive(sock: socket.socket) -> dict[str, Any]:
    """Receive one message. Raises ValueError if it is malformed, EOFError at the connection's end."""
    size = int.from_bytes(await _receive_exactly(sock, 4), "little")
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {size} bytes")
    body = await _receive_exactly(sock, size)
    try:
        message = json.loads(body)
    except RecursionError as error:
        raise ValueError("a frame that is nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("a frame that is not a JSON object")
    return message


async def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = await asyncio.get_running_loop().sock_recv(sock, size - len(received))
        if not chunk:
            raise EOFError("end of stream")
        received += chunk
    return bytes(received)
