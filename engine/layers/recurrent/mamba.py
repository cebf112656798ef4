"""Mamba-2 mixer (arXiv 2405.21060), in place of attention in some layers, or next to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.execution.batch import Batch
from baton.engine.execution.state_blocks import Run, StateBlocks
from baton.engine.kv.layer_states import LayerStates
from baton.engine.kv.state_layout import StatePlace
from baton.engine.layers.linear import Linear, load_rows
from baton.engine.layers.linear_source import ProjectionRows
from baton.engine.layers.recurrent.causal_conv import CausalConv
from baton.engine.layers.recurrent.gated_norm import GatedGroupNorm, load_gated_norm
from baton.engine.layers.recurrent.rank_parts import PartsOutput, RankParts, joined
from baton.engine.layers.recurrent.state_space import SpaceInputs, scan_space, step_space
from baton.engine.mamba import Mamba2Config
from baton.engine.ops.base import Rotation
from baton.engine.parallel.tensor_shard import TensorShard


@dataclass(frozen=True, slots=True)
class MambaInputs:
    """Projections of a layer's input to what each part needs, part by part."""

    mixed: Linear  # to the gates of the output, and the inputs of the convolution, in this order
    steps: Linear  # to the logits of the steps


@dataclass(frozen=True, slots=True)
class HeadParameters:
    """Parameters of each head, [num_heads] float32."""

    decay_rates: Tensor  # at most 0
    step_bias: Tensor
    skips: Tensor  # factors on the values, which are added to the outputs


class MambaPart:
    """Some heads: convolution over the last tokens, and the selective state space."""

    def __init__(self, config: Mamba2Config, conv: CausalConv, parameters: HeadParameters, states: LayerStates) -> None:
        """config: of these heads."""
        self.config = config
        self.conv = conv
        self.parameters = parameters
        self.states = states

    def __call__(self, mixed: Tensor, logits: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the outputs [num_tokens, width] float32 for inputs of the convolution and logits of the steps."""
        logits = logits.float() * self.config.multipliers.steps + self.parameters.step_bias
        steps = F.softplus(logits).clamp_(*self.config.step_limits)  # [num_tokens, num_heads]
        return batch.advance_states(self._advance, (mixed, steps), layer_cache)

    def _advance(self, inputs: Sequence[Tensor], runs: Sequence[Run], pool: Tensor, blocks: StateBlocks) -> Tensor:
        """Return the state space's outputs [num_tokens, width]; see `Advance`.

        inputs: [num_tokens, conv_width] of the convolution, and steps [num_tokens, num_heads].
        """
        states = self.states.read(pool, blocks)
        earlier, matrices = self.states.tensors(states)
        heads = self._apply(self._convolved(inputs[0], earlier, runs), inputs[1], matrices, runs)
        self.states.write(pool, blocks, states)
        return heads

    def _convolved(self, mixed: Tensor, earlier: Tensor, runs: Sequence[Run]) -> Tensor:
        parts, end = [], 0
        for run in runs:
            start, end = end, end + run.num_tokens
            new = mixed[start:end].view(-1, run.length, self.config.conv_width)
            parts.append(self.conv(new, earlier[run.rows]))
        return torch.cat(parts)

    def _apply(self, mixed: Tensor, steps: Tensor, matrices: Tensor, runs: Sequence[Run]) -> Tensor:
        """Return the state space's output [num_tokens, width] for the convolution's [num_tokens, conv_width].

        matrices: [num_seqs, num_groups, state_dim, group_width], updated in place.
        """
        config = self.config
        sizes = [config.width, config.num_groups * config.state_dim, config.num_groups * config.state_dim]
        values, b, c = mixed.split_with_sizes(sizes, dim=1)
        heads = values.view(len(mixed), config.num_heads, config.head_dim)
        by_group = (len(mixed), config.num_groups, -1)
        inputs = SpaceInputs(
            (heads * steps.unsqueeze(-1)).view(*by_group, config.head_dim),
            b.view(by_group),
            c.view(by_group),
            (steps * self.parameters.decay_rates).view(by_group),
        )
        outputs = []
        for run in (each for each in runs if each.is_stepwise):
            first, inputs = inputs.split(run.num_tokens)
            places = [step_space(each, matrices[run.rows]) for each in first.by_place(run)]
            outputs.append(run.in_order(places))
        if lengths := [run.length for run in runs if not run.is_stepwise]:
            outputs.append(scan_space(inputs, lengths, matrices[-len(lengths) :]))
        output = torch.cat(outputs).view_as(heads)
        return output.addcmul_(heads, self.parameters.skips.unsqueeze(-1)).flatten(1)


class Mamba2Mixer:
    """A rank's parts of a mixer, and the gated norm of their outputs."""

    def __init__(
        self,
        config: Mamba2Config,
        inputs: MambaInputs,
        parts: Sequence[MambaPart],
        norm: GatedGroupNorm,
        output: PartsOutput,
    ) -> None:
        """config: of a part."""
        self.config = config
        self.inputs = inputs
        self.parts = parts
        self.norm = norm
        self.output = output

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape; layer_cache: the whole KV pool."""
        config, factor, count = self.config, self.config.multipliers.input, len(self.parts)
        x = x if factor == 1 else x * factor
        sizes = [config.width, config.conv_width] * count
        gates_and_mixed, logits = self.inputs.mixed(x).split_with_sizes(sizes, dim=1), self.inputs.steps(x)
        each = zip(self.parts, gates_and_mixed[1::2], logits.chunk(count, dim=1), strict=True)
        heads = joined([part(mixed, steps, layer_cache, batch) for part, mixed, steps in each])
        output = self.output(self.norm(heads, joined(gates_and_mixed[::2])).to(x.dtype))
        return output if config.output_multiplier == 1 else output * config.output_multiplier


def load_mamba(
    weights: Weights,
    prefix: str,
    config: Mamba2Config,
    hidden_size: int,
    eps: float,
    place: StatePlace,
    parts: RankParts,
) -> Mamba2Mixer:
    """Load a rank's parts of the mixer with the tensors `prefix`.in_proj etc."""
    own = config.part(parts.num_parts)
    states = parts.states(place, own.state_shapes)
    return Mamba2Mixer(
        own,
        _load_inputs(weights, f"{prefix}.in_proj", config, hidden_size, parts),
        [_load_part(weights, prefix, config, own, *each) for each in zip(parts.shards, states, strict=True)],
        load_gated_norm(weights, f"{prefix}.norm", config, eps, parts),
        parts.load_output(weights, f"{prefix}.out_proj", config.width, hidden_size, bias=config.has_output_bias),
    )


def _load_part(
    weights: Weights, prefix: str, config: Mamba2Config, own: Mamba2Config, shard: TensorShard, states: LayerStates
) -> MambaPart:
    heads, width = (shard.of(config.num_heads),), config.conv_width
    decays, bias, skips = (
        weights.take(f"{prefix}.{name}", config.num_heads, dtype=torch.float32, part=heads)
        for name in ("A_log", "dt_bias", "D")
    )
    factors, filters, biases = config.multipliers, [], []
    for rows, factor in zip(_conv_rows(config, shard), (factors.values, factors.writes, factors.reads), strict=True):
        name, shape = f"{prefix}.conv1d.weight", (width, 1, config.conv_size)
        filters.append(weights.take(name, *shape, dtype=torch.float32, part=(rows,)) * factor)
        if config.has_conv_bias:
            biases.append(weights.take(f"{prefix}.conv1d.bias", width, dtype=torch.float32, part=(rows,)))
    conv = CausalConv(torch.cat(filters).squeeze(1).T.contiguous(), torch.cat(biases) if biases else None)
    return MambaPart(own, conv, HeadParameters(-decays.exp(), bias, skips), states)


def _conv_rows(config: Mamba2Config, shard: TensorShard) -> list[slice]:
    """Return the channels of a part's values, B and C among those of all heads and groups."""
    values, group = shard.of(config.num_heads, config.head_dim), shard.of(config.num_groups, config.state_dim)
    writes, reads = config.width, config.width + config.num_groups * config.state_dim
    starts = ((0, values), (writes, group), (reads, group))
    return [slice(start + rows.start, start + rows.stop) for start, rows in starts]


def _load_inputs(weights: Weights, name: str, config: Mamba2Config, hidden_size: int, parts: RankParts) -> MambaInputs:
    """Load the projection of a layer's input; the rows of the steps, which are few, are not rounded."""
    width, bias = config.width + config.conv_width, config.has_input_bias
    mixed, steps = [], []
    for shard in parts.shards:
        mixed.append(shard.of(config.num_heads, config.head_dim))
        mixed += [slice(config.width + rows.start, config.width + rows.stop) for rows in _conv_rows(config, shard)]
        heads = shard.of(config.num_heads)
        steps.append(slice(width + heads.start, width + heads.stop))
    mixed_rows, step_rows = (
        [ProjectionRows(name, width + config.num_heads, rows) for rows in each] for each in (mixed, steps)
    )
    return MambaInputs(
        load_rows(weights, mixed_rows, hidden_size, bias=bias),
        load_rows(weights, step_rows, hidden_size, bias=bias, is_exact=True),
    )
