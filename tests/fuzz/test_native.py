"""The compiled modules with arbitrary arguments: they raise, or match their Python references."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from baton.engine.kv.python_block_hash import chain_hashes as python_chain
from baton.router.index.python_prefix_index import PythonIndex
from tests.fuzz.fuzzing import Fuzzing

chain_hashes = pytest.importorskip("baton.engine.native.block_hash").chain_hashes
CompiledIndex = pytest.importorskip("baton.router.index.native.prefix_index").CompiledIndex

RAISED = (TypeError, ValueError, OverflowError)
HUGE_BLOCK = (1 << 32) - 1


class Lying(Sequence[int]):
    """A sequence whose length is wrong."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: Any) -> Any:
        raise IndexError


def shrinking_list() -> list[Any]:
    """Return a list that is emptied when its twenty-first element is read."""
    tokens: list[Any] = list(range(40))
    tokens[20] = type("Index", (), {"__index__": lambda self: tokens.clear() or 7})()
    return tokens


odd_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=40),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.integers(), st.integers(), max_size=2),
    st.builds(Lying), st.builds(object), st.sampled_from(["\ud800", b"x" * 15, bytearray(16), range(64)]),
)  # fmt: skip
parents = st.one_of(st.binary(min_size=16, max_size=16), odd_values)
token_ids = st.one_of(
    st.lists(st.integers(0, (1 << 32) - 1), max_size=80),
    st.lists(st.one_of(st.integers(-2, 1 << 33), st.just(True), st.floats(), st.none()), max_size=40),
    st.lists(st.integers(0, 9), max_size=40).map(np.array),
    st.lists(st.integers(0, 9), max_size=40).map(tuple),
    st.builds(shrinking_list),
    odd_values,
)
HUGE_SIZES = [0, -1, HUGE_BLOCK, HUGE_BLOCK + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64]
sizes = st.one_of(st.integers(1, 20), st.sampled_from(HUGE_SIZES), odd_values)
starts = st.one_of(st.integers(0, 80), st.sampled_from(HUGE_SIZES), odd_values)


def check_message(error: Exception) -> None:
    """Check that an error has a message."""
    assert str(error)


def test_block_hashes_equal_the_python_reference(fuzzing: Fuzzing) -> None:
    def check(call: tuple[Any, Any, Any, Any]) -> None:
        parent, tokens, block_size, start = call
        is_plain = type(tokens) is list and all(type(each) is int for each in tokens)
        try:
            hashes = chain_hashes(parent, tokens, block_size, start)
        except RAISED as error:
            check_message(error)
            return
        assert type(hashes) is bytes
        if is_plain and type(parent) is bytes and type(start) is int:
            assert hashes == python_chain(parent, tokens, int(block_size), start)

    fuzzing.run(st.tuples(parents, token_ids, sizes, starts), check, 400)


def test_a_block_larger_than_any_prompt_costs_nothing() -> None:
    assert chain_hashes(bytes(16), list(range(64)), HUGE_BLOCK, 0) == b""


def test_the_list_may_change_while_it_is_read() -> None:
    with pytest.raises(ValueError, match="became fewer"):
        chain_hashes(bytes(16), shrinking_list(), 4, 0)


no_bytes = odd_values.filter(lambda value: not isinstance(value, bytes | bytearray))  # bytes are valid names
names = st.one_of(st.sampled_from(["a", "b", "c", ""]), st.text(max_size=4), no_bytes)
hashes = st.lists(st.integers(0, 30), max_size=12).map(lambda each: b"".join(n.to_bytes(16, "big") for n in each))
packed = st.one_of(hashes, hashes, hashes, odd_values)
operations = st.one_of(
    st.tuples(st.just("update"), names, packed, packed),
    st.tuples(st.just("update"), st.sampled_from("abcdefgh"), hashes, hashes),
    st.tuples(st.just("reset"), names),
    st.tuples(st.just("match"), packed),
    st.tuples(st.just("num_blocks"), names),
)


def test_the_prefix_index_equals_the_python_reference(fuzzing: Fuzzing) -> None:
    def check(calls: list[tuple[Any, ...]]) -> None:
        index, twin = CompiledIndex(), PythonIndex()
        for name, *arguments in calls:
            try:
                result = getattr(index, name)(*arguments)
            except RAISED as error:
                check_message(error)
                continue
            expected = getattr(twin, name)(*arguments)
            assert result == expected, (name, arguments)

    fuzzing.run(st.lists(operations, max_size=40), check, 100)
