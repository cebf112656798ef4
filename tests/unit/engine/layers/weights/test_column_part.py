"""A rank's columns of a rounded weight are those of the weight that one rank rounds."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from baton.engine.checkpoint.weights import Weights
from baton.engine.config import MoEConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.families.tensor_names import ExpertNames
from baton.engine.layers.expert_reader import ExpertReader
from baton.engine.layers.linear import Linear, load_partial
from baton.engine.layers.weights.grouped_weight import GroupedWeight
from baton.engine.parallel.tensor_shard import TensorShard
from tests.paged_model import CPU

HIDDEN = 64
needs_vnni = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="products in int8 need VNNI")
ROUNDINGS = ["int4", pytest.param("int8", marks=needs_vnni)]


def stored(directory: Path, quantization: str | None, tensors: dict[str, torch.Tensor]) -> Weights:
    save_file(tensors, directory / "model.safetensors")
    return Weights(directory, torch.bfloat16, CPU, quantization=quantization)


def drawn(rows: int, columns: int) -> torch.Tensor:
    """Return a weight whose columns have numbers of different sizes, so that its parts have scales of their own."""
    whole = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
    return (whole * torch.linspace(0.1, 3, columns)).bfloat16()


def values(linear: Linear, columns: int) -> torch.Tensor:
    """Return the elements of a weight as products see them: rows of one 1 are exact in int8 too."""
    return linear(torch.eye(columns, dtype=torch.bfloat16))


def check_parts(whole: Linear, parts: Sequence[Linear], columns: int) -> None:
    share = columns // len(parts)
    found = torch.cat([values(part, share) for part in parts])
    assert torch.equal(found, values(whole, columns))
    assert all(type(part.form) is type(whole.form) for part in parts)


# In groups of 128 of which ranks have halves, 1.5 and whole ones; of 32, split at 48; and too few columns for groups.
@pytest.mark.parametrize(("columns", "size"), [(128, 2), (384, 2), (512, 4), (96, 2), (48, 2), (72, 3)])
@pytest.mark.parametrize("quantization", ROUNDINGS)
def test_the_parts_of_a_projection(quantization: str, columns: int, size: int, tmp_path: Path) -> None:
    weights = stored(tmp_path, quantization, {"o_proj.weight": drawn(HIDDEN, columns)})

    def load(shard: TensorShard) -> Linear:
        return load_partial(weights, "o_proj", columns, HIDDEN, shard.of(columns), shard)

    whole = load(TensorShard())
    check_parts(whole, [load(TensorShard(rank, size)) for rank in range(size)], columns)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("quantization", ROUNDINGS)
def test_the_parts_of_an_expert(quantization: str, is_fused: bool, tmp_path: Path) -> None:
    size, names = 128, ExpertNames()
    config = MoEConfig(num_experts=1, num_experts_per_token=1, intermediate_size=size)
    gate_up, down = drawn(2 * size, HIDDEN), drawn(HIDDEN, size)
    if is_fused:
        tensors = {f"mlp.{names.all_gate_up}": gate_up[None], f"mlp.{names.all_down}": down[None]}
    else:
        halves = [each.contiguous() for each in gate_up.split(size)]
        parts = zip((names.gate, names.up, names.down), (*halves, down), strict=True)
        tensors = {f"mlp.experts.0.{name}.weight": part for name, part in parts}
    weights = stored(tmp_path, quantization, tensors)

    def read(shard: TensorShard) -> Linear:
        return ExpertReader(weights, "mlp", HIDDEN, config, names, shard).read(0).down

    check_parts(read(TensorShard()), [read(TensorShard(rank, 2)) for rank in range(2)], size)


def test_columns_that_a_4_bit_weight_cannot_be_divided_into(tmp_path: Path) -> None:
    weights = stored(tmp_path, "int4", {"o_proj.weight": drawn(HIDDEN, 48)})
    shard = TensorShard(1, 4)
    with pytest.raises(UnsupportedModel, match="columns 12 to 24 are not whole units of 8; use fewer tensor-parallel"):
        load_partial(weights, "o_proj", 48, HIDDEN, shard.of(48), shard)
    whole = load_partial(weights, "o_proj", 48, HIDDEN, slice(None), TensorShard())
    assert isinstance(whole.form, GroupedWeight)
