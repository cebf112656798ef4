"""Malformed HTTP/1.1: wrong lengths, odd chunks, headers and pipelines."""

import json

from hypothesis import strategies as st

from tests.fuzz.grpc.mutations import damaged_bytes
from tests.fuzz.router_rig import MODEL_NAME

BODY = json.dumps({"model": MODEL_NAME, "prompt": "hi", "max_tokens": 2, "stream": True}).encode()
HOST = b"Host: a\r\n"
JSON = b"Content-Type: application/json\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"5;ext=1\r\n%b\r\n%x\r\n%b\r\n0\r\nTrailer: 1\r\n\r\n" % (
    BODY[:5], len(BODY) - 5, BODY[5:],
)  # fmt: skip
REQUESTS = [
    WHOLE,
    CHUNKED,
    b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /v1/models/bundled%5fmodel HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    b"HEAD /v1/models HTTP/1.0\r\n\r\n",
    WHOLE.replace(JSON, JSON + b"Expect: 100-continue\r\n"),
    WHOLE.replace(JSON, JSON + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"),
    WHOLE.replace(JSON, JSON + b"Authorization: Bearer \xff\xfe\r\nX-Request-Id: \x80\r\nX-Baton-Timeout: 5\r\n"),
    b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n" + WHOLE + b"GET /ready HTTP/1.1\r\n" + HOST + b"\r\n",
]
LENGTHS = [
    b"-1", b"+5", b"5, 5", b"0x5", b"5 5", b"", b" ", b"\xb2", b"5;", b"1e3", b"0", b"1", b"99999999", b"9" * 20,
    b"9" * 5000,
]  # fmt: skip
CHUNK_SIZES = [
    b"-1",
    b"ffffffffffffffff",
    b"fffffffffffffffff",
    b"0x5",
    b"",
    b" 5",
    b"5 ",
    b"g",
    b"00000000005",
    b"5;" + b"x" * 9000,
]
TARGETS = [
    b"*", b"//", b"http://a/health", b"/%00", b"/v1/models/%ff%fe", b"/v1/models/..%2f..", b"/health?%",
    b"/" + b"a" * 70_000,
    b"/health#x", b"health", b"", b"/\xff", b"/v1/models/%", b"/v1/completions/", b"a:1", b"/docs",
    b"/openapi.json?a=[",
]  # fmt: skip
METHODS = [
    b"GET",
    b"POST",
    b"PUT",
    b"CONNECT",
    b"OPTIONS",
    b"TRACE",
    b"PRI",
    b"get",
    b"",
    b"X" * 5000,
    b"G\0T",
    b"M-SEARCH",
]
HEADERS = [
    b"X: " + b"a" * 100_000, b"X" * 70_000 + b": a", b"X : a", b": a", b"X", b"X: a\n y", b"X: \0",
    b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: xchunked",
    b"Content-Length: 1\r\nContent-Length: 2",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"\r\n".join([b"X: y"] * 3000), b"X-Baton-Plan: \xff",
    b"X-Baton-Timeout: nan", b"X-Baton-Decode: \xff\x00", b"Host: b", b"Connection: close, keep-alive",
    b"Upgrade: websocket",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x", b"Content-Encoding: gzip",
    b"Expect: 200-ok",
    b"Content-Type: application/json\r\nContent-Type: text/plain", b"Accept: " + b"*/*," * 3000,
]  # fmt: skip
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.10", b"HTTP/x", b"ICE/1.0", b""]


def headed(method: bytes, target: bytes, version: bytes, header: bytes, body: bytes) -> bytes:
    """Build a request with an odd head."""
    return b"%b %b %b\r\n%b%b%b\r\nContent-Length: %d\r\n\r\n%b" % (
        method, target, version, HOST, JSON, header, len(body), body,
    )  # fmt: skip


lengths = st.builds(lambda length: POST + b"Content-Length: %b\r\n\r\n" % length + BODY, st.sampled_from(LENGTHS))
chunks = st.builds(
    lambda size, end: POST + b"Transfer-Encoding: chunked\r\n\r\n%b\r\n%b%b" % (size, BODY, end),
    st.sampled_from(CHUNK_SIZES),
    st.sampled_from([b"", b"\r\n0\r\n\r\n", b"\n0\n\n", b"\r\n0\r\nX: y\r\n\r\n"]),
)
heads = st.builds(
    headed,
    st.sampled_from([b"POST", *METHODS]),
    st.sampled_from([b"/v1/completions", *TARGETS]),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", *VERSIONS]),
    st.sampled_from([b"A: b", b"A: b", *HEADERS]),
    st.sampled_from([BODY, b"", b"{"]),
)
one_header = st.builds(
    headed, st.just(b"POST"), st.just(b"/v1/completions"), st.just(b"HTTP/1.1"), st.sampled_from(HEADERS), st.just(BODY)
)
pipelines = st.lists(st.sampled_from(REQUESTS), min_size=2, max_size=4).map(b"".join)
raw_requests = st.one_of(
    st.binary(max_size=300),
    st.sampled_from(REQUESTS),
    st.sampled_from(REQUESTS).flatmap(damaged_bytes),
    lengths,
    chunks,
    heads,
    one_header,
    pipelines,
    pipelines.flatmap(damaged_bytes),
)
