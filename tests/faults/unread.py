"""Attacks by clients that request long streams and do not read them, over every protocol of a router.

Each is a context manager that holds its connection open and unread until it exits.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum

import orjson

from baton.protos.router_pb2 import GenerateRequest

NUM_COMPLETIONS = 128
RECEIVE_BYTES = 4096  # of the kernel's buffer, so that the kernel receives little for the client
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
OPEN_BYTES = 1 << 30
GENERATE = "/baton.v1.Inference/Generate"


class Path(Enum):
    """A protocol and endpoint of the router."""

    PLAIN = "plain"
    QUERY = "query"
    EXPECT = "expect"
    WHOLE = "whole"
    GRPC = "grpc"


@asynccontextmanager
async def unread_stream(
    address: str, path: Path, max_tokens: int, num_completions: int = NUM_COMPLETIONS, **headers: str
) -> AsyncIterator[socket.socket]:
    """Send one request to host:port of the HTTP or gRPC server without reading; yield the connection."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        client.setblocking(False)
        await loop.sock_connect(client, (host, int(port)))
        await loop.sock_sendall(client, _request(path, max_tokens, num_completions, headers))
        if path is Path.EXPECT:
            assert (await loop.sock_recv(client, 64)).startswith(b"HTTP/1.1 100 ")
            await loop.sock_sendall(client, _body(path, max_tokens, num_completions))
        yield client


@asynccontextmanager
async def unread_streams(
    address: str, path: Path, max_tokens: int, num_requests: int = 2, **headers: str
) -> AsyncIterator[None]:
    """Hold several such requests open."""
    if not num_requests:
        yield
        return
    async with (
        unread_stream(address, path, max_tokens, NUM_COMPLETIONS, **headers),
        unread_streams(address, path, max_tokens, num_requests - 1, **headers),
    ):
        yield


def open_windows() -> bytes:
    """Return the HTTP/2 frames that open a gRPC client's flow-control windows."""
    settings = _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, OPEN_BYTES))
    return settings + _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", OPEN_BYTES))


def _request(path: Path, max_tokens: int, num_completions: int, headers: dict[str, str]) -> bytes:
    if path is Path.GRPC:
        return _grpc_request(max_tokens, num_completions, headers)
    body = _body(path, max_tokens, num_completions)
    lines = [f"POST /v1/completions{'?x' if path is Path.QUERY else ''} HTTP/1.1", "host: x"]
    lines += ["content-type: application/json", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if path is Path.EXPECT:
        return "\r\n".join([*lines, "expect: 100-continue", "", ""]).encode()
    return "\r\n".join([*lines, "", ""]).encode() + body


def _body(path: Path, max_tokens: int, num_completions: int) -> bytes:
    return orjson.dumps(
        {
            "prompt": "hello",
            "max_tokens": max_tokens,
            "n": num_completions,
            "stream": path is not Path.WHOLE,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": 20,
        }
    )


def _grpc_request(max_tokens: int, num_completions: int, headers: dict[str, str]) -> bytes:
    """Return the HTTP/2 frames of a call whose client never opens its flow-control window."""
    message = GenerateRequest(text="hello", n=num_completions)
    message.sampling.max_tokens = max_tokens
    message.sampling.ignore_eos = True
    message.sampling.logprobs = 20
    payload = message.SerializeToString()
    fields = {":method": "POST", ":scheme": "http", ":path": GENERATE, ":authority": "x", "te": "trailers"}
    fields |= {"content-type": "application/grpc"} | headers
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())
    return b"".join(
        (
            PREFACE,
            _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)),
            _frame(HEADERS, END_HEADERS, 1, block),
            _frame(DATA, END_STREAM, 1, b"\x00" + struct.pack(">I", len(payload)) + payload),
        )
    )


def _text(text: str) -> bytes:
    """Encode a short string for HPACK, without Huffman coding."""
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream_id) + payload
