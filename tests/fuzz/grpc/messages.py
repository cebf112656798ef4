"""Random protobuf messages, generated from their descriptors, so that new fields are fuzzed automatically."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from tests.fuzz.grpc.mutations import damaged_bytes

M = TypeVar("M", bound=Message)
Strategy = st.SearchStrategy[Any]
Overrides = Mapping[str, Strategy]  # by field name: strategies whose values are often valid

MAX_DEPTH = 4
UNSIGNED_32, UNSIGNED_64, SIGNED_32, SIGNED_64 = (1 << 32) - 1, (1 << 64) - 1, (1 << 31) - 1, (1 << 63) - 1


def whole_numbers(low: int, high: int) -> Strategy:
    """Generate small numbers, the bounds, and any in between."""
    return st.one_of(st.integers(max(low, 0), 20), st.sampled_from([low, high, high - 1, 0, 1]), st.integers(low, high))


FLOATS = st.one_of(st.floats(width=32), st.sampled_from([0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), 1e-45]))
ODD_TEXTS = ["", "a", "\0", "x" * 20_000, "é\n"]
TEXTS = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.sampled_from(ODD_TEXTS))
KINDS: Mapping[int, Strategy] = {
    FieldDescriptor.TYPE_FLOAT: FLOATS,
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: TEXTS,
    FieldDescriptor.TYPE_BYTES: st.one_of(st.binary(max_size=64), st.just(bytes(4096))),
    FieldDescriptor.TYPE_UINT32: whole_numbers(0, UNSIGNED_32),
    FieldDescriptor.TYPE_FIXED32: whole_numbers(0, UNSIGNED_32),
    FieldDescriptor.TYPE_UINT64: whole_numbers(0, UNSIGNED_64),
    FieldDescriptor.TYPE_FIXED64: whole_numbers(0, UNSIGNED_64),
    FieldDescriptor.TYPE_INT32: whole_numbers(-SIGNED_32 - 1, SIGNED_32),
    FieldDescriptor.TYPE_INT64: whole_numbers(-SIGNED_64 - 1, SIGNED_64),
    FieldDescriptor.TYPE_ENUM: whole_numbers(-SIGNED_32 - 1, SIGNED_32),
}


def messages(kind: type[M], overrides: Overrides | None = None) -> st.SearchStrategy[M]:
    """Generate messages with random fields set to values of their types."""
    found: st.SearchStrategy[M] = _messages(kind.DESCRIPTOR, overrides or {}, 0)
    return found


def wire(kind: type[Message], overrides: Overrides | None = None) -> st.SearchStrategy[bytes]:
    """Generate valid encodings of a message, damaged ones, and arbitrary bytes."""
    encoded = messages(kind, overrides).map(lambda message: message.SerializeToString())
    return st.one_of(encoded.flatmap(damaged_bytes), st.binary(max_size=200))


@st.composite
def _messages(draw: Callable[[Strategy], Any], kind: Descriptor, overrides: Overrides, depth: int) -> Message:
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if draw(st.integers(0, 2)):  # set two fields of three; with fewer, most messages would be refused early
            _set(draw, message, field, overrides, depth)
    return message


def _set(
    draw: Callable[[Strategy], Any], message: Message, field: FieldDescriptor, overrides: Overrides, depth: int
) -> None:
    target = getattr(message, field.name)
    if field.name in overrides:
        value = draw(overrides[field.name])
        if field.is_repeated:
            target.extend(value)
        elif field.message_type is not None:
            target.CopyFrom(value)
        else:
            setattr(message, field.name, value)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        keys, values = (KINDS[field.message_type.fields_by_name[name].type] for name in ("key", "value"))
        for key, value in draw(st.dictionaries(keys, values, max_size=3)).items():
            target[key] = value
    elif field.message_type is not None:
        if depth < MAX_DEPTH and field.is_repeated:
            target.extend(draw(st.lists(_messages(field.message_type, overrides, depth + 1), max_size=3)))
        elif depth < MAX_DEPTH:
            target.CopyFrom(draw(_messages(field.message_type, overrides, depth + 1)))
            target.SetInParent()
    elif field.is_repeated:
        target.extend(draw(st.lists(KINDS[field.type], max_size=5)))
    else:
        setattr(message, field.name, draw(KINDS[field.type]))
