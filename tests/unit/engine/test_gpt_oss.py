"""GPT-OSS with experts in MXFP4: packed in memory, the same numbers, any shard of them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.weight_memory import num_parameters, weights_bytes
from baton.engine.checkpoint.weights import Weights
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.gpt_oss import GPT_OSS
from baton.engine.layers.expert_reader import ExpertReader
from baton.engine.layers.experts import Expert
from baton.engine.layers.moe import MoE
from baton.engine.layers.weights.grouped_weight import GroupedWeight
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.decoder_layer import DecoderLayer
from baton.engine.parallel.tensor_shard import TensorShard
from tests.checkpoints import make_checkpoint
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.mxfp4_writer import Pair, write_mxfp4

NAMES = GPT_OSS.names.experts[0]
TOKENS = list(range(3, 110))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("gpt-oss")
    return write_mxfp4(make_checkpoint("gpt-oss", directory / "source"), directory)


def test_packed_experts_give_the_logits_of_the_same_numbers(stored: Pair) -> None:
    packed, exact = (PagedModel(each) for each in stored)
    found, expected = (each.step({"s": TOKENS})["s"] for each in (packed, exact))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert isinstance(packed.model, CausalLM)
    layer = packed.model.layers[0]
    assert isinstance(layer, DecoderLayer)
    assert isinstance(layer.feed_forward, MoE)
    expert = layer.feed_forward.experts.slots[0]
    for linear in (expert.gate_up, expert.down):
        assert isinstance(linear.form, GroupedWeight)
        assert linear.form.matrix.num_bytes < 0.6 * linear.form.out_features * linear.form.in_features


def test_packed_experts_count_as_the_weights_that_they_are_in_half_a_byte_each(stored: Pair) -> None:
    (packed, packed_config), (exact, exact_config) = ((each, read_model_config(each)) for each in stored)
    assert num_parameters(packed, packed_config) == num_parameters(exact, exact_config)
    num_experts = 4 * 8 * 3 * 64 * 96
    saved = weights_bytes(exact, exact_config, None) - weights_bytes(packed, packed_config, None)
    assert saved == num_experts * 4 - num_experts * (1 / 2 + 1 / 32)


@pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="products in int8 need VNNI")
def test_packed_experts_can_become_int8(stored: Pair) -> None:
    """The codes are dequantised once and rounded again, like plain weights."""
    found, expected = (PagedModel(each, quantization="int8").step({"s": TOKENS})["s"] for each in stored)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_read_their_rows_of_gate_and_up_and_rank_0_the_bias_of_the_output(stored: Pair, size: int) -> None:
    prefix = "model.layers.1.mlp"
    tensors = load_file(stored[1] / "model.safetensors")
    gate_up = tensors[f"{prefix}.experts.gate_up_proj"][5].T
    bias, down = tensors[f"{prefix}.experts.gate_up_proj_bias"][5], tensors[f"{prefix}.experts.down_proj"][5].T
    for rank in range(size):
        ours = TensorShard(rank, size).of(96)
        for directory in stored:
            expert = read_expert(directory, prefix, TensorShard(rank, size))
            assert torch.equal(
                dense(expert.gate_up.weight, expert, 0), torch.cat([gate_up[0::2][ours], gate_up[1::2][ours]])
            )
            assert torch.equal(dense(expert.down.weight, expert, 1), down[:, ours])
            assert expert.gate_up.bias is not None
            assert torch.equal(expert.gate_up.bias, torch.cat([bias[0::2][ours], bias[1::2][ours]]))
            assert (expert.down.bias is None) == (rank > 0)


def read_expert(directory: Path, prefix: str, shard: TensorShard) -> Expert:
    config = read_model_config(directory)
    assert config.moe is not None
    weights = Weights(directory, torch.float32, CPU, stored_quantization=config.stored_quantization)
    return ExpertReader(weights, prefix, config.hidden_size, config.moe, NAMES, shard).read(5)


def dense(weight: torch.Tensor, expert: Expert, which: int) -> torch.Tensor:
    """Return a weight as plain numbers."""
    form = (expert.gate_up, expert.down)[which].form
    if not isinstance(form, GroupedWeight):
        return weight
    return form.matrix.dequantised(slice(None), torch.float32)


def test_missing_exponents_are_named(stored: Pair, tmp_path: Path) -> None:
    tensors = load_file(stored[0] / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.down_proj_scales"]
    (tmp_path / "config.json").write_text((stored[0] / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model.layers.2.mlp.experts.down_proj_scales is missing"):
        PagedModel(tmp_path)
