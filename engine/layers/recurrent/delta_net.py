"""Gated delta net (arXiv 2412.06464), in place of attention in some layers of Qwen3-Next and Qwen3.5."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights, peek_all
from baton.engine.delta_net import DeltaNetConfig
from baton.engine.execution.batch import Batch
from baton.engine.kv.layer_states import LayerStates
from baton.engine.layers.linear import Linear, Projection, load_fused, load_linear, load_slices, make_linear
from baton.engine.layers.norm import RMSNorm
from baton.engine.layers.recurrent.causal_conv import CausalConv
from baton.engine.layers.recurrent.delta_rule import chunk_rule, step_rule
from baton.engine.ops.base import Rotation

NORM_EPS = 1e-6  # of the norms of queries and keys


@dataclass(frozen=True, slots=True)
class DeltaNetInputs:
    """Projections of a layer's input."""

    mixed: Linear  # to queries, keys, values and gates of the output, in this order
    rates: Linear  # to the logits of the rates, and the steps of the decays


class GatedDeltaNet:
    """Convolution over the last tokens, the gated delta rule, and a gated norm of its output."""

    def __init__(
        self,
        config: DeltaNetConfig,
        inputs: DeltaNetInputs,
        conv: CausalConv,
        decay_rates: Tensor,
        decay_bias: Tensor,
        norm: RMSNorm,
        output: Projection,
        states: LayerStates,
    ) -> None:
        """decay_rates, at most 0, and decay_bias: [num_value_heads], in float32."""
        self.config = config
        self.inputs = inputs
        self.conv = conv
        self.decay_rates = decay_rates
        self.decay_bias = decay_bias
        self.norm = norm
        self.output = output
        self.states = states

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape; layer_cache: the whole KV pool."""
        config = self.config
        assert batch.states is not None, "the batch of a recurrent model has the blocks of its states"
        mixed, gates = self.inputs.mixed(x).split_with_sizes([config.conv_width, config.values_width], dim=1)
        rates, steps = self.inputs.rates(x).float().chunk(2, dim=1)
        rates, decays = rates.sigmoid(), self.decay_rates * F.softplus(steps + self.decay_bias)
        states = self.states.read(layer_cache, batch.states)
        inputs, matrices = self.states.tensors(states)
        outputs, end = [], 0
        for rows, length in batch.runs():
            start, end = end, end + (rows.stop - rows.start) * length
            tokens = slice(start, end)
            convolved = self.conv(mixed[tokens].view(-1, length, config.conv_width), inputs[rows]).to(x.dtype)
            outputs.append(self._apply(convolved, decays[tokens], rates[tokens], matrices[rows]))
        self.states.write(layer_cache, batch.states, states)
        heads = torch.cat(outputs).to(x.dtype)  # [num_tokens, num_value_heads, value_dim]
        gated = self.norm(heads).float() * F.silu(gates.float()).view_as(heads)
        return self.output(gated.to(x.dtype).flatten(1))

    def _apply(self, mixed: Tensor, decays: Tensor, rates: Tensor, matrices: Tensor) -> Tensor:
        """Apply the delta rule to the tokens [num_tokens, conv_width] of one sequence, or of one token each.

        matrices: [num_seqs, num_value_heads, key_dim, value_dim], updated in place. Returns [num_tokens,
        num_value_heads, value_dim].
        """
        config = self.config
        widths = [config.keys_width, config.keys_width, config.values_width]
        q, k, v = mixed.float().split_with_sizes(widths, dim=1)
        q, k = (self._normed(each.view(len(mixed), -1, config.key_dim)) for each in (q, k))
        q, v = q * config.key_dim**-0.5, v.view(len(mixed), -1, config.value_dim)
        if len(mixed) == len(matrices):
            return step_rule(q, k, v, decays, rates, matrices)
        q, k, v, decays, rates = (each.transpose(0, 1).contiguous() for each in (q, k, v, decays, rates))
        return chunk_rule(q, k, v, decays, rates, matrices[0]).transpose(0, 1)

    def _normed(self, heads: Tensor) -> Tensor:
        """Return heads [num_tokens, num_key_heads, key_dim] of length 1, once for each value head that they serve."""
        normed = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + NORM_EPS)
        return normed.repeat_interleave(self.config.num_value_heads // self.config.num_key_heads, dim=1)


def load_delta_net(
    weights: Weights,
    prefix: str,
    config: DeltaNetConfig,
    hidden_size: int,
    eps: float,
    states: LayerStates,
    *,
    by_key_head: bool,
) -> GatedDeltaNet:
    """Load the delta net with the tensors `prefix`.conv1d etc. by_key_head: see `TensorNames`."""
    size, width, num_heads = config.conv_size, config.conv_width, config.num_value_heads
    load = _load_inputs_by_head if by_key_head else _load_inputs
    heads = [weights.take(f"{prefix}.{name}", num_heads, dtype=torch.float32) for name in ("A_log", "dt_bias")]
    filters = weights.take(f"{prefix}.conv1d.weight", width, 1, size, dtype=torch.float32)
    return GatedDeltaNet(
        config,
        load(weights, prefix, config, hidden_size),
        CausalConv(filters.squeeze(1).T.contiguous()),
        -heads[0].exp(),
        heads[1],
        RMSNorm(weights.take(f"{prefix}.norm.weight", config.value_dim), eps),
        load_linear(weights, f"{prefix}.out_proj", config.values_width, hidden_size),
        states,
    )


def _load_inputs(weights: Weights, prefix: str, config: DeltaNetConfig, hidden_size: int) -> DeltaNetInputs:
    sizes = [config.conv_width, config.values_width]
    mixed = load_fused(weights, [f"{prefix}.in_proj_{name}" for name in ("qkv", "z")], hidden_size, sizes)
    names = [f"{prefix}.in_proj_{name}.weight" for name in ("b", "a")]
    rates = peek_all(weights, names, [config.num_value_heads] * 2, hidden_size)
    return DeltaNetInputs(mixed, make_linear(weights, rates, quantization=None))


def _load_inputs_by_head(weights: Weights, prefix: str, config: DeltaNetConfig, hidden_size: int) -> DeltaNetInputs:
    """Load projections whose rows are stored by key head: its query, key, values and gates; its rates and decays."""
    per_key = config.num_value_heads // config.num_key_heads
    mixed_widths = [config.key_dim, config.key_dim, per_key * config.value_dim, per_key * config.value_dim]
    mixed = load_slices(
        weights,
        f"{prefix}.in_proj_qkvz",
        hidden_size,
        config.conv_width + config.values_width,
        _rows_by_kind(mixed_widths, config.num_key_heads),
    )
    rows = _rows_by_kind([per_key, per_key], config.num_key_heads)
    names, sizes = [f"{prefix}.in_proj_ba.weight"] * len(rows), [2 * config.num_value_heads] * len(rows)
    rates = peek_all(weights, names, sizes, hidden_size, wanted=[(each,) for each in rows])
    return DeltaNetInputs(mixed, make_linear(weights, rates, quantization=None))


def _rows_by_kind(widths: list[int], num_heads: int) -> list[slice]:
    """Return the rows of each kind in turn, for all heads; they are stored by head, with `widths` rows of each kind."""
    starts = [sum(widths[:kind]) for kind in range(len(widths))]
    return [
        slice(head * sum(widths) + start, head * sum(widths) + start + width)
        for start, width in zip(starts, widths, strict=True)
        for head in range(num_heads)
    ]
