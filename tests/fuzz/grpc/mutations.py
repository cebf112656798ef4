"""Random damage to bytes and to JSON values."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

HUGE = [0, 1, -1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**30, 1e308, 1e-320, -0.0]
JsonValue = Any  # a JSON value, NaN and infinities included

numbers = st.one_of(st.sampled_from(HUGE), st.integers(), st.floats(), st.integers(0, 10), st.integers(-(2**70), 2**70))
odd_texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "\0", "..", "../../etc/passwd", "/", "\ud800", "\n", "x" * 5000, "é" * 300]),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, odd_texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(odd_texts, inner, max_size=4)),
    max_leaves=8,
)


@st.composite
def damaged_bytes(draw: Callable[..., Any], whole: bytes) -> bytes:
    """Generate the bytes with some changed, removed or inserted, or truncated."""
    damaged = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(damaged) - 1, 0)))
        match draw(st.sampled_from(["flip", "byte", "cut", "insert", "remove", "repeat"])):
            case "flip" if damaged:
                damaged[place] ^= 1 << draw(st.integers(0, 7))
            case "byte" if damaged:
                damaged[place] = draw(st.integers(0, 255))
            case "cut":
                del damaged[place:]
            case "insert":
                damaged[place:place] = draw(st.binary(max_size=16))
            case "remove":
                del damaged[place : place + draw(st.integers(1, 16))]
            case "repeat":
                damaged[place:place] = damaged[place : place + draw(st.integers(1, 64))]
    return bytes(damaged)


@st.composite
def damaged_json(draw: Callable[..., Any], whole: JsonValue, most: int = 3) -> JsonValue:
    """Generate the value with up to `most` nested values replaced, removed or added."""
    damaged = deepcopy(whole)
    for _ in range(draw(st.integers(1, most))):
        holders = _containers(damaged)
        if not holders:
            return draw(json_values)
        holder = holders[draw(st.integers(0, len(holders) - 1))]
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys)) if keys else None
        action = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "add" or key is None:
            if isinstance(holder, dict):
                holder[draw(odd_texts)] = draw(json_values)
            else:
                holder.append(draw(json_values))
        elif action == "remove":
            del holder[key]
        else:
            holder[key] = draw(json_values)
    return damaged


def _containers(tree: JsonValue) -> list[Any]:
    """Return every object and list of a tree; the children of long ones are skipped."""
    found: list[Any] = []
    left = [tree]
    while left:
        each = left.pop()
        if isinstance(each, dict | list):
            found.append(each)
            children = each.values() if isinstance(each, dict) else each
            if len(each) <= 64:
                left += children
    return found
