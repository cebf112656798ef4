"""Bodies in Kubernetes' protobuf, as far as clients send any: Go's typed clients do, without being asked.

A body is the magic word, then a `runtime.Unknown` with the kind and the object itself. Answers may be JSON, so nothing
is ever written in this form.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.helm.api_server.errors import ApiError, Json

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"

Read = Callable[[bytes], Any]
Fields = Mapping[int, tuple[str, Read]]


def _text(raw: bytes) -> str:
    return raw.decode()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _message(fields: Fields, repeated: frozenset[str] = frozenset()) -> Read:
    def read(raw: bytes) -> Json:
        found: Json = {}
        for number, value in _wire(raw):
            name, of_value = fields.get(number, ("", _text))
            if not name or isinstance(value, int):
                if name:
                    found[name] = value
            elif name in repeated:
                found.setdefault(name, []).append(of_value(value))
            elif of_value in ENTRIES:
                found.setdefault(name, {}).update(of_value(value))
            elif value:
                found[name] = of_value(value)
        return found

    return read


def _entry(of_value: Read) -> Read:
    def read(raw: bytes) -> Json:
        parts = dict(_wire(raw))
        key, value = parts.get(1, b""), parts.get(2, b"")
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        return {key.decode(): of_value(value)}

    return read


def _wire(raw: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a message, by number."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(raw):
        tag = varint()
        match tag & 7:
            case 0:
                yield tag >> 3, varint()
            case 2:
                size = varint()
                yield tag >> 3, raw[at : at + size]
                at += size
            case kind:
                raise ApiError(415, "UnsupportedMediaType", f"wire type {kind} is not read here")


TEXTS, BYTES = _entry(_text), _entry(_base64)
ENTRIES = (TEXTS, BYTES)
METADATA = _message(
    {
        1: ("name", _text),
        2: ("generateName", _text),
        3: ("namespace", _text),
        5: ("uid", _text),
        6: ("resourceVersion", _text),
        11: ("labels", TEXTS),
        12: ("annotations", TEXTS),
        14: ("finalizers", _text),
    },
    frozenset({"finalizers"}),
)
PRECONDITIONS = _message({1: ("uid", _text), 2: ("resourceVersion", _text)})
KINDS: Mapping[str, Read] = {
    "Secret": _message({1: ("metadata", METADATA), 2: ("data", BYTES), 3: ("type", _text), 5: ("immutable", _text)}),
    "ConfigMap": _message({1: ("metadata", METADATA), 2: ("data", TEXTS), 3: ("binaryData", BYTES)}),
    "Namespace": _message({1: ("metadata", METADATA)}),
    "DeleteOptions": _message(
        {1: ("gracePeriodSeconds", _text), 2: ("preconditions", PRECONDITIONS), 4: ("propagationPolicy", _text)}
    ),
}
TYPE = _message({1: ("apiVersion", _text), 2: ("kind", _text)})
UNKNOWN = _message({1: ("type", TYPE), 2: ("raw", bytes)})


def read_protobuf(body: bytes) -> Json:
    """The object. Raises ApiError if it is of a kind that nobody was seen to send."""
    if not body.startswith(MAGIC):
        raise ApiError(415, "UnsupportedMediaType", "the body is no protobuf of Kubernetes")
    unknown = UNKNOWN(body[len(MAGIC) :])
    kind = unknown["type"].get("kind", "")
    if kind not in KINDS:
        raise ApiError(415, "UnsupportedMediaType", f"{kind or 'an object without a kind'} is read as JSON only")
    return {**unknown["type"], **KINDS[kind](unknown.get("raw", b""))}
