"""A token's attention has the same bits however the work is divided."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("baton.engine.native.paged_attention", reason="attention was not compiled when this was installed")

from baton.engine.attention import int4_rows
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.span import AttentionSpan
from baton.engine.native.paged_attention import instruction_sets
from tests.marks import slow_case, slow_except
from tests.unit.engine.attention_rig import Chunks, PagedHeads, Sequences

DTYPES = (torch.float32, torch.bfloat16)
KV_DTYPES = (None, torch.int8, int4_rows.DTYPE)
HEADS = {"grouped": (6, 2, 80, 80), "many": (32, 2, 64, 64), "latent": (5, 1, 72, 56)}
# Each instruction set and each KV dtype runs with every kind of heads. The other combinations are slow.
TYPES = itertools.product(instruction_sets(), DTYPES, KV_DTYPES)
CASES = [
    (kind, *each) if place % len(HEADS) == index else slow_case(kind, *each)
    for place, each in enumerate(TYPES)
    for index, kind in enumerate(HEADS)
]


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


KINDS: dict[str, dict[str, Any]] = {
    "window": {"span": AttentionSpan(100), "soft_cap": 2.0},
    "long window": {"span": AttentionSpan(300), "has_sinks": True},
    "chunks": {"span": AttentionSpan(96, is_chunked=True), "has_sinks": True, "soft_cap": 2.0},
}


def paged_heads(kind: str, dtype: torch.dtype, kv_dtype: torch.dtype | None, block_size: int = 16) -> PagedHeads:
    num_heads, num_kv_heads, key_width, value_width = HEADS[kind]
    heads = AttentionHeads(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        key_width=key_width,
        value_width=value_width,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )
    return PagedHeads(heads, block_size)


def at_once(sequences: Sequences, seq: int, instructions: str) -> Tensor:
    """Return the attention of all of a sequence's tokens, computed alone, in one chunk and on one thread."""
    torch.set_num_threads(1)
    chunks = {seq: range(len(sequences.tokens[seq]))}
    return sequences.attend(sequences.paged.native(instructions), chunks, sequences.pool({}))


@pytest.mark.parametrize(("kind", "instructions", "dtype", "kv_dtype"), CASES)
def test_bits_do_not_depend_on_chunks_other_sequences_or_threads(
    kind: str, instructions: str, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    check_bits(paged_heads(kind, dtype, kv_dtype), instructions)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instructions", slow_except(instruction_sets(), {instruction_sets()[0]}))
def test_bits_of_each_kind_of_attention_do_not_depend_on_chunks_other_sequences_or_threads(
    kind: str, instructions: str, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    check_bits(replace(paged_heads("grouped", dtype, kv_dtype), **KINDS[kind]), instructions)


def check_bits(paged: PagedHeads, instructions: str) -> None:
    """Compare sequences in random batches with each of them alone, in one chunk and on one thread."""
    draw = random.Random(5)
    lens = [610, 257, 90]
    sequences = Sequences(paged, lens, 1)
    expected = [at_once(sequences, seq, instructions) for seq in range(len(lens))]
    pool, done = sequences.pool({}, unseen=1e30), [0] * len(lens)
    native = sequences.paged.native(instructions)
    while waiting := [seq for seq, length in enumerate(lens) if done[seq] < length]:
        counts = {seq: draw.choice((1, 3, 70, 120)) for seq in draw.sample(waiting, draw.randint(1, len(waiting)))}
        chunks: Chunks = {
            seq: range(done[seq], min(done[seq] + counts[seq], lens[seq]))
            for seq in sorted(counts, key=lambda seq: min(counts[seq], lens[seq] - done[seq]) > 1)
        }
        torch.set_num_threads(draw.choice((1, 2, 4)))
        results = sequences.attend(native, chunks, pool).split_with_sizes([len(each) for each in chunks.values()])
        for (seq, places), result in zip(chunks.items(), results, strict=True):
            assert torch.equal(result, expected[seq][places.start : places.stop])
            done[seq] = places.stop


@pytest.mark.parametrize(("kind", "instructions", "dtype", "kv_dtype"), CASES)
def test_bits_do_not_depend_on_dividing_a_context_among_threads(
    kind: str, instructions: str, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    sequences = Sequences(paged_heads(kind, dtype, kv_dtype), [1500], 2)
    chunks, pool = {0: range(1499, 1500)}, sequences.pool({0: range(1499)})
    native, results = sequences.paged.native(instructions), []
    for num_threads in (1, 2, 3, 8, 2):
        torch.set_num_threads(num_threads)
        results.append(sequences.attend(native, chunks, pool))
    assert all(torch.equal(result, results[0]) for result in results[1:])
    assert torch.equal(results[0][0], at_once(sequences, 0, instructions)[-1])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_block_size(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    results = []
    for block_size in (1, 8, 16, 60, 64):
        sequences = Sequences(paged_heads("grouped", dtype, kv_dtype, block_size), [400], 4)
        results.append(at_once(sequences, 0, instruction_sets()[0]))
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_many_tokens_are_written_by_several_threads(kv_dtype: torch.dtype | None) -> None:
    torch.set_num_threads(4)
    sequences = Sequences(paged_heads("many", torch.float32, kv_dtype), [1500], 6)
    chunks = {0: range(1500)}
    pool = sequences.pool({})
    sequences.attend(sequences.paged.native(), chunks, pool)
    assert torch.equal(pool, sequences.pool(chunks))
