"""Collectives of ranks that share a model: sums in the order of ranks, columns at rank 0, batches for all."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.execution.batch import pack, unpack
from baton.engine.kv.groups import KVGroups
from baton.engine.parallel.tensor_parallel import FIRST_NUMBERS, MIN_SPLIT_BYTES, TensorGroup
from baton.engine.vision.image_tokens import ImageTokens
from tests.checkpoints import make_checkpoint
from tests.paged_model import PagedModel
from tests.unit.engine.tensor_rig import on_all_ranks


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_added_in_the_order_of_ranks(size: int, dtype: torch.dtype) -> None:
    """All ranks get the same bits, whether they exchange whole tensors (few rows) or each adds some of the rows."""
    shapes = [(1, 8), (3, 64), (700, 256), (3, 65536), (0, 64)]

    def part(rank: int, rows: int, width: int) -> Tensor:
        return torch.randn(rows, width, generator=torch.Generator().manual_seed(rank)).to(dtype)

    def all_sums(tensor: TensorGroup) -> list[Tensor]:
        return [tensor.sum(part(tensor.shard.rank, *shape)) for shape in shapes]

    assert 700 * 256 * dtype.itemsize > MIN_SPLIT_BYTES
    by_rank = on_all_ranks(size, all_sums)
    for place, shape in enumerate(shapes):
        expected = part(0, *shape).float()
        for rank in range(1, size):
            expected = expected + part(rank, *shape).float()
        for sums in by_rank:
            assert torch.equal(sums[place], expected.to(dtype))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_columns_are_gathered_at_the_first_rank(size: int) -> None:
    whole = torch.randn(5, 16 * size, generator=torch.Generator().manual_seed(1))

    def gather(tensor: TensorGroup) -> list[Tensor]:
        ours = whole[:, tensor.shard.of(16 * size)]
        return [tensor.gather(ours), tensor.gather(ours[:0])]

    (gathered, nothing), *others = on_all_ranks(size, gather)
    assert torch.equal(gathered, whole)
    assert nothing.shape == (0, 16 * size)
    assert all(torch.equal(ours, whole[:, 16 * r : 16 * r + 16]) for r, (ours, _) in enumerate(others, start=1))


def test_batches_of_any_size_reach_all_ranks(llama3: Path) -> None:
    batches = [PagedModel(llama3).batch([f"s{i}" for i in range(num)], [[5] * 40] * num) for num in (1, 30, 1)]
    assert len(pack(batches[0])) < FIRST_NUMBERS < len(pack(batches[1]))

    def broadcast_all(tensor: TensorGroup) -> list[Tensor]:
        if tensor.shard.rank == 0:
            for batch in batches:
                tensor.broadcast(batch)
            return [pack(batch) for batch in batches]
        return [pack(tensor.receive_broadcast()) for _ in batches]

    first, *others = on_all_ranks(3, broadcast_all)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ranks_get_the_bits_of_the_first(size: int, dtype: torch.dtype) -> None:
    sent = torch.randn(700, 24, generator=torch.Generator().manual_seed(1)).to(dtype)

    def copied(tensor: TensorGroup) -> Tensor:
        x = sent.clone() if tensor.shard.rank == 0 else torch.empty_like(sent)
        tensor.copy_from_rank0(x)
        return x

    assert all(torch.equal(each, sent) for each in on_all_ranks(size, copied))


def test_places_of_images_and_rotary_positions_unpack_to_equal_ones(llama3: Path) -> None:
    plain = PagedModel(llama3).batch(["a", "b"], [[8], list(range(3, 60))])
    rotated = replace(plain, rotary_positions=torch.arange(plain.num_tokens) + 2)
    images = ImageTokens(torch.tensor([4, 5, 9]), torch.arange(3 * plain.num_tokens).view(3, -1))
    for batch in (plain, rotated, replace(rotated, images=images)):
        other = unpack(pack(batch))
        assert torch.equal(other.block_tables, batch.block_tables)
        assert (other.rotary_positions is None) == (batch.rotary_positions is None)
        assert (other.images is None) == (batch.images is None)
    assert other.rotary_positions is not None
    assert other.images is not None
    assert torch.equal(other.rotary_positions, rotated.rotary_positions)
    assert torch.equal(other.images.rows, images.rows)
    assert torch.equal(other.images.positions, images.positions)


def test_a_packed_batch_unpacks_to_an_equal_one(llama3: Path) -> None:
    paged = PagedModel(llama3)
    paged.groups = KVGroups(16, (FULL, AttentionSpan(20), AttentionSpan(20)), ((0,), (1,), (2,)))
    paged.step({"a": [5, 6, 7]})
    batch = paged.batch(["a", "b"], [[8], list(range(3, 60))])
    other = unpack(pack(batch))
    for name in batch.__slots__:
        ours, theirs = getattr(batch, name), getattr(other, name)
        if name != "other_groups":
            assert torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs
    assert len(other.other_groups) == 2
    for group in (1, 2):
        ours, theirs = batch.of_group(group), other.of_group(group)
        assert torch.equal(ours.slot_mapping, theirs.slot_mapping)
        assert torch.equal(ours.block_tables, theirs.block_tables)
        assert not torch.equal(ours.slot_mapping, batch.slot_mapping)
