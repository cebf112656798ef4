"""Plans and calls of FlashInfer's wrappers, compared with the torch reference; the kernels themselves need a GPU."""

import random
import sys

import pytest
import torch

from baton.engine.attention.factory import attention_for
from baton.engine.attention.flashinfer import FlashInferAttention, is_made_for
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.paged_sequences import PagedSequences
from baton.engine.attention.span import AttentionSpan
from baton.engine.attention.torch_reference import TorchAttention
from tests.marks import slow_except
from tests.unit.engine.attention_rig import (
    Chunks,
    PagedHeads,
    Sequences,
    model_config,
    random_chunks,
    random_kind,
)
from tests.unit.engine.emulation.flashinfer_emulation import EMULATION

CPU = torch.device("cpu")


def heads_of(num_heads: int, num_kv_heads: int, width: int, value_width: int | None = None) -> AttentionHeads:
    return AttentionHeads(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        key_width=width,
        value_width=value_width or width,
        dtype=torch.float32,
    )


def backend(paged: PagedHeads) -> FlashInferAttention:
    return FlashInferAttention(
        paged.scale,
        paged.block_size,
        paged.heads,
        CPU,
        paged.num_parts,
        EMULATION,
        soft_cap=paged.soft_cap,
        spans=(paged.span,),
    )


def check(paged: PagedHeads, chunks: Chunks, seed: int) -> None:
    """Check that FlashInfer and the reference write equal KV and return close results."""
    sequences = Sequences(paged, [places.stop for places in chunks.values()], seed)
    before = {seq: range(places.start) for seq, places in chunks.items()}
    pool = sequences.pool(before, unseen=float("nan"))  # unseen KV must not affect results
    expected_pool = sequences.pool(before)
    result = sequences.attend(backend(paged), chunks, pool)
    expected = sequences.attend(paged.reference(), chunks, expected_pool)
    torch.testing.assert_close(result, expected, atol=3e-6, rtol=3e-6)
    assert torch.equal(torch.nan_to_num(pool), expected_pool)


@pytest.mark.parametrize("seed", slow_except(range(12), {0, 1, 2, 3}))
@pytest.mark.parametrize(
    ("heads", "num_parts"),
    [(heads_of(8, 2, 16), 1), (heads_of(8, 4, 16), 2), (heads_of(4, 4, 8), 4), (heads_of(6, 1, 24, 16), 1)],
)
def test_results_agree_with_the_reference(heads: AttentionHeads, num_parts: int, seed: int) -> None:
    draw = random.Random(seed)
    check(PagedHeads(heads, draw.choice((4, 16)), num_parts), random_chunks(draw, 400), seed)


@pytest.mark.parametrize("seed", slow_except(range(20, 60), range(20, 32)))
def test_kinds_of_attention_agree_with_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    heads, num_parts = draw.choice(((heads_of(8, 2, 16), 1), (heads_of(8, 4, 16), 2), (heads_of(4, 4, 8), 4)))
    check(random_kind(PagedHeads(heads, draw.choice((4, 16)), num_parts), draw), random_chunks(draw, 400), seed)


@pytest.mark.parametrize("chunks", [{0: range(7, 8)}, {0: range(9)}, {0: range(15, 16), 1: range(32, 48)}])
def test_small_batches_agree_with_the_reference(chunks: Chunks) -> None:
    check(PagedHeads(heads_of(4, 2, 8), 16), chunks, 1)


def test_a_backend_serves_several_batches_in_turn() -> None:
    """A plan does not depend on those of earlier steps."""
    paged = PagedHeads(heads_of(4, 2, 8), 4)
    sequences, served = Sequences(paged, [30, 30, 30], 2), backend(paged)
    pool, expected_pool = sequences.pool({}), sequences.pool({})
    for chunks in ({0: range(9)}, {0: range(9, 10), 1: range(13)}, {0: range(10, 11), 1: range(13, 14)}, {2: range(5)}):
        result = sequences.attend(served, chunks, pool)
        torch.testing.assert_close(result, sequences.attend(paged.reference(), chunks, expected_pool))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("num_shared", "num_parts"), [(1, 1), (3, 2), (6, 1)])
def test_decodes_read_a_shared_prefix_once(num_shared: int, num_parts: int, seed: int) -> None:
    """A prompt chunk in the same batch has the same prefix, but is computed separately."""
    draw = random.Random(seed)
    paged = PagedHeads(heads_of(8, 2, 16), 4, num_parts, has_sinks=seed % 2 == 1)
    lengths = [4 * num_shared + draw.randrange(1, 30) for _ in range(5)]
    sequences = Sequences(paged, lengths, seed)
    for table in sequences.tables:
        table[:num_shared] = sequences.tables[0][:num_shared]
    chunks = {seq: range(length - 1, length) for seq, length in enumerate(lengths[:4])}
    if draw.random() < 0.5:
        chunks[4] = range(lengths[4] - 3, lengths[4])
    block_bytes = 2 * 2 * 4 * 16 * 4
    served = FlashInferAttention(
        paged.scale, 4, paged.heads, CPU, num_parts, EMULATION, least_saved_bytes=3 * num_shared * block_bytes
    )
    assert served.num_shared_blocks(sequences.batch(chunks)) == num_shared
    pool, expected_pool = sequences.pool({}), sequences.pool({})
    result = sequences.attend(served, chunks, pool)
    torch.testing.assert_close(result, sequences.attend(paged.reference(), chunks, expected_pool), atol=3e-6, rtol=3e-6)
    usual = FlashInferAttention(
        paged.scale, 4, paged.heads, CPU, num_parts, EMULATION, least_saved_bytes=3 * num_shared * block_bytes + 1
    )
    assert usual.num_shared_blocks(sequences.batch(chunks)) == 0


def test_the_shared_prefix_leaves_each_decode_a_token() -> None:
    paged = PagedHeads(heads_of(4, 2, 8), 4)
    sequences = Sequences(paged, [8, 8, 9], 1)
    for table in sequences.tables:
        table[:2] = sequences.tables[0][:2]
    served = FlashInferAttention(paged.scale, 4, paged.heads, CPU, 1, EMULATION, least_saved_bytes=1)
    assert served.num_shared_blocks(sequences.batch({0: range(7, 8), 1: range(7, 8)})) == 1
    assert served.num_shared_blocks(sequences.batch({2: range(8, 9)})) == 0


def test_a_prefix_is_not_shared_if_all_layers_have_windows() -> None:
    paged = PagedHeads(heads_of(4, 2, 8), 4)
    sequences = Sequences(paged, [9, 9], 1)
    sequences.tables[1][:2] = sequences.tables[0][:2]
    batch = sequences.batch({0: range(8, 9), 1: range(8, 9)})
    for spans, num_shared in ((((window := AttentionSpan(4)),), 0), ((window, AttentionSpan()), 2), ((), 2)):
        served = FlashInferAttention(paged.scale, 4, paged.heads, CPU, 1, EMULATION, least_saved_bytes=1, spans=spans)
        assert served.num_shared_blocks(batch) == num_shared


def test_paged_sequences_leave_out_what_is_behind_their_span() -> None:
    paged = PagedHeads(heads_of(2, 1, 8), 4)
    sequences = Sequences(paged, [30, 30], 3)
    batch, (first, second) = sequences.batch({0: range(29, 30), 1: range(14, 30)}), sequences.tables
    window = PagedSequences.of(batch, 4, span=AttentionSpan(6))  # the first new tokens attend to 24 to 29, and 9 to 14
    assert window.blocks.tolist() == [*first[6:], *second[2:]]
    assert window.context_lens.tolist() == [6, 22]
    chunks = PagedSequences.of(batch, 4, span=AttentionSpan(12, is_chunked=True))
    assert chunks.query_starts.tolist() == [0, 1, 11, 17]
    assert chunks.blocks.tolist() == [*first[6:], *second[3:6], *second[6:]]
    assert chunks.context_lens.tolist() == [6, 12, 6]


def test_paged_sequences_have_no_padding() -> None:
    paged = PagedHeads(heads_of(2, 1, 8), 4)
    sequences = Sequences(paged, [1, 9, 12, 4], 3)
    batch = sequences.batch({0: range(1), 1: range(8, 9), 2: range(3, 12), 3: range(4)})
    found = PagedSequences.of(batch, 4).part(1, 4)
    assert found.query_starts.tolist() == [0, 1, 10, 14]
    assert found.block_starts.tolist() == [0, 3, 6, 7]
    assert found.blocks.tolist() == [block for seq in (1, 2, 3) for block in sequences.tables[seq]]
    assert found.context_lens.tolist() == [9, 12, 4]
    assert found.last_block_lens.tolist() == [1, 4, 4]


def test_only_shapes_with_a_kernel_are_supported() -> None:
    def serves(width: int, value_width: int, dtype: torch.dtype, num_heads: int = 4) -> bool:
        return is_made_for(
            AttentionHeads(num_heads=num_heads, num_kv_heads=1, key_width=width, value_width=value_width, dtype=dtype)
        )

    assert serves(128, 128, torch.bfloat16)
    assert serves(576, 512, torch.bfloat16)
    assert not serves(128, 128, torch.float32)
    assert not serves(80, 80, torch.bfloat16)
    assert not serves(40, 32, torch.bfloat16)
    assert serves(576, 512, torch.bfloat16, 128)
    assert not serves(576, 512, torch.bfloat16, 24)


def test_fallbacks_to_torch_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)  # so that its import fails
    gpu = torch.device("cuda")
    assert isinstance(attention_for(model_config(None, "bfloat16", 64), 16, gpu), TorchAttention)
    assert 'pip install "baton-serve[gpu]"' in caplog.text
    assert isinstance(attention_for(model_config(None, "bfloat16", 80), 16, gpu), TorchAttention)
    assert "no kernels for a head width of 80 in bfloat16" in caplog.text
