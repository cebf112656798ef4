"""Gated delta net (arXiv 2412.06464), in place of attention in some layers of Qwen3-Next and Qwen3.5."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.delta_net import DeltaNetConfig
from baton.engine.execution.batch import Batch
from baton.engine.execution.state_blocks import Run, StateBlocks
from baton.engine.kv.layer_states import LayerStates
from baton.engine.kv.state_layout import StatePlace
from baton.engine.layers.linear import Linear, load_rows
from baton.engine.layers.linear_source import ProjectionRows
from baton.engine.layers.norm import RMSNorm
from baton.engine.layers.recurrent.causal_conv import CausalConv
from baton.engine.layers.recurrent.delta_rule import chunk_rule, step_rule
from baton.engine.layers.recurrent.rank_parts import PartsOutput, RankParts, joined
from baton.engine.ops.base import Rotation
from baton.engine.parallel.tensor_shard import TensorShard

NORM_EPS = 1e-6  # of the norms of queries and keys


@dataclass(frozen=True, slots=True)
class DeltaNetInputs:
    """Projections of a layer's input to what each part needs, part by part."""

    mixed: Linear  # to queries, keys, values and gates of the output, in this order
    rates: Linear  # to the logits of the rates, and the steps of the decays


class DeltaNetPart:
    """Some heads: convolution over the last tokens, the gated delta rule, and a gated norm of its output."""

    def __init__(
        self,
        config: DeltaNetConfig,
        conv: CausalConv,
        decay_rates: Tensor,
        decay_bias: Tensor,
        norm: RMSNorm,
        states: LayerStates,
    ) -> None:
        """config: of these heads; decay_rates, at most 0, and decay_bias: [num_value_heads], in float32."""
        self.config = config
        self.conv = conv
        self.decay_rates = decay_rates
        self.decay_bias = decay_bias
        self.norm = norm
        self.states = states

    def __call__(self, mixed: Tensor, rates: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the normed outputs [num_tokens, values_width] for this part's projections, see `DeltaNetInputs`."""
        config = self.config
        mixed, gates = mixed.split_with_sizes([config.conv_width, config.values_width], dim=1)
        rates, steps = rates.float().chunk(2, dim=1)
        rates, decays = rates.sigmoid(), self.decay_rates * F.softplus(steps + self.decay_bias)
        heads = batch.advance_states(self._advance, (mixed, decays, rates), layer_cache).to(mixed.dtype)
        gated = self.norm(heads).float() * F.silu(gates.float()).view_as(heads)
        return gated.to(mixed.dtype).flatten(1)

    def _advance(self, inputs: Sequence[Tensor], runs: Sequence[Run], pool: Tensor, blocks: StateBlocks) -> Tensor:
        """Return the outputs [num_tokens, num_value_heads, value_dim] of the delta rule; see `Advance`.

        inputs: [num_tokens, conv_width] of the convolution; logarithms of decays, and rates, [num_tokens,
        num_value_heads].
        """
        mixed, decays, rates = inputs
        states = self.states.read(pool, blocks)
        earlier, matrices = self.states.tensors(states)
        outputs, end = [], 0
        for run in runs:
            start, end = end, end + run.num_tokens
            tokens = slice(start, end)
            new = mixed[tokens].view(-1, run.length, self.config.conv_width)
            convolved = self.conv(new, earlier[run.rows]).to(mixed.dtype)
            outputs.append(self._apply(convolved, decays[tokens], rates[tokens], matrices[run.rows], run))
        self.states.write(pool, blocks, states)
        return torch.cat(outputs)

    def _apply(self, mixed: Tensor, decays: Tensor, rates: Tensor, matrices: Tensor, run: Run) -> Tensor:
        """Apply the delta rule to the tokens [num_tokens, conv_width] of a run.

        matrices: [num_seqs, num_value_heads, key_dim, value_dim], updated in place. Returns [num_tokens,
        num_value_heads, value_dim].
        """
        config = self.config
        widths = [config.keys_width, config.keys_width, config.values_width]
        q, k, v = mixed.float().split_with_sizes(widths, dim=1)
        q, k = (self._normed(each.view(len(mixed), -1, config.key_dim)) for each in (q, k))
        q, v = q * config.key_dim**-0.5, v.view(len(mixed), -1, config.value_dim)
        if run.is_stepwise:
            q, k, v, decays, rates = map(run.by_place, (q, k, v, decays, rates))
            outputs = [step_rule(*each, matrices) for each in zip(q, k, v, decays, rates, strict=True)]
            return run.in_order(outputs)
        q, k, v, decays, rates = (each.transpose(0, 1).contiguous() for each in (q, k, v, decays, rates))
        return chunk_rule(q, k, v, decays, rates, matrices[0]).transpose(0, 1)

    def _normed(self, heads: Tensor) -> Tensor:
        """Return heads [num_tokens, num_key_heads, key_dim] of length 1, once for each value head that they serve."""
        normed = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + NORM_EPS)
        return normed.repeat_interleave(self.config.num_value_heads // self.config.num_key_heads, dim=1)


class GatedDeltaNet:
    """A rank's parts of a gated delta net."""

    def __init__(self, inputs: DeltaNetInputs, parts: Sequence[DeltaNetPart], output: PartsOutput) -> None:
        self.inputs = inputs
        self.parts = parts
        self.output = output

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape; layer_cache: the whole KV pool."""
        mixed, rates = (linear(x).chunk(len(self.parts), dim=1) for linear in (self.inputs.mixed, self.inputs.rates))
        each = zip(self.parts, mixed, rates, strict=True)
        return self.output(joined([part(ours, logits, layer_cache, batch) for part, ours, logits in each]))


def load_delta_net(
    weights: Weights,
    prefix: str,
    config: DeltaNetConfig,
    hidden_size: int,
    eps: float,
    place: StatePlace,
    parts: RankParts,
    *,
    by_key_head: bool,
) -> GatedDeltaNet:
    """Load a rank's parts of the delta net with the tensors `prefix`.conv1d etc. by_key_head: see `TensorNames`."""
    own = config.part(parts.num_parts)
    norm = RMSNorm(weights.take(f"{prefix}.norm.weight", config.value_dim), eps)
    rows_of = _rows_by_head if by_key_head else _rows
    kinds = [rows_of(prefix, config, shard) for shard in parts.shards]
    return GatedDeltaNet(
        DeltaNetInputs(
            load_rows(weights, [rows for mixed, _ in kinds for rows in mixed], hidden_size),
            load_rows(weights, [rows for _, rates in kinds for rows in rates], hidden_size, is_exact=True),
        ),
        [
            _load_part(weights, prefix, config, own, norm, shard, states)
            for shard, states in zip(parts.shards, parts.states(place, own.state_shapes), strict=True)
        ],
        parts.load_output(weights, f"{prefix}.out_proj", config.values_width, hidden_size),
    )


def _load_part(
    weights: Weights,
    prefix: str,
    config: DeltaNetConfig,
    own: DeltaNetConfig,
    norm: RMSNorm,
    shard: TensorShard,
    states: LayerStates,
) -> DeltaNetPart:
    size, count, part = config.conv_size, config.num_value_heads, (shard.of(config.num_value_heads),)
    heads = [weights.take(f"{prefix}.{name}", count, dtype=torch.float32, part=part) for name in ("A_log", "dt_bias")]
    filters = [
        weights.take(f"{prefix}.conv1d.weight", config.conv_width, 1, size, dtype=torch.float32, part=(rows,))
        for rows in _conv_rows(config, shard)
    ]
    conv = CausalConv(torch.cat(filters).squeeze(1).T.contiguous())
    return DeltaNetPart(own, conv, -heads[0].exp(), heads[1], norm, states)


def _conv_rows(config: DeltaNetConfig, shard: TensorShard) -> list[slice]:
    """Return the channels of a part's queries, keys and values among those of all heads."""
    keys, values = shard.of(config.num_key_heads, config.key_dim), shard.of(config.num_value_heads, config.value_dim)
    parts = ((0, keys), (config.keys_width, keys), (2 * config.keys_width, values))
    return [slice(first + rows.start, first + rows.stop) for first, rows in parts]


def _rows(prefix: str, config: DeltaNetConfig, shard: TensorShard) -> tuple[list[ProjectionRows], list[ProjectionRows]]:
    """Return the rows of a part's inputs, and of its rates."""
    mixed = [ProjectionRows(f"{prefix}.in_proj_qkv", config.conv_width, rows) for rows in _conv_rows(config, shard)]
    gates = shard.of(config.num_value_heads, config.value_dim)
    mixed.append(ProjectionRows(f"{prefix}.in_proj_z", config.values_width, gates))
    heads, count = shard.of(config.num_value_heads), config.num_value_heads
    return mixed, [ProjectionRows(f"{prefix}.in_proj_{name}", count, heads) for name in ("b", "a")]


def _rows_by_head(
    prefix: str, config: DeltaNetConfig, shard: TensorShard
) -> tuple[list[ProjectionRows], list[ProjectionRows]]:
    """Return those of projections stored by key head: its query, key, values and gates; its rates and decays."""
    per_key = config.num_value_heads // config.num_key_heads
    mixed_widths = [config.key_dim, config.key_dim, per_key * config.value_dim, per_key * config.value_dim]
    heads = range(config.num_key_heads)[shard.of(config.num_key_heads)]
    size, name = config.conv_width + config.values_width, f"{prefix}.in_proj_qkvz"
    mixed = [ProjectionRows(name, size, rows) for rows in _rows_by_kind(mixed_widths, heads)]
    size, name = 2 * config.num_value_heads, f"{prefix}.in_proj_ba"
    return mixed, [ProjectionRows(name, size, rows) for rows in _rows_by_kind([per_key, per_key], heads)]


def _rows_by_kind(widths: list[int], heads: range) -> list[slice]:
    """Return the rows of each kind in turn, for some heads; stored by head, `widths` rows of each kind."""
    starts = [sum(widths[:kind]) for kind in range(len(widths))]
    return [
        slice(head * sum(widths) + start, head * sum(widths) + start + width)
        for start, width in zip(starts, widths, strict=True)
        for head in heads
    ]
