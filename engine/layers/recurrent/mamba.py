"""Mamba-2 mixer (arXiv 2405.21060), in place of attention in some layers, or next to it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights, peek_all, stack
from baton.engine.execution.batch import Batch
from baton.engine.kv.layer_states import LayerStates
from baton.engine.layers.linear import Linear, Projection, load_linear, load_slices, make_linear
from baton.engine.layers.recurrent.causal_conv import CausalConv
from baton.engine.layers.recurrent.state_space import SpaceInputs, scan_space, step_space
from baton.engine.mamba import Mamba2Config
from baton.engine.ops.base import Rotation


@dataclass(frozen=True, slots=True)
class MambaInputs:
    """Projections of a layer's input."""

    mixed: Linear  # to the gates of the output, and the inputs of the convolution, in this order
    steps: Linear  # to the logits of the steps


@dataclass(frozen=True, slots=True)
class HeadParameters:
    """Parameters of each head, [num_heads] float32."""

    decay_rates: Tensor  # at most 0
    step_bias: Tensor
    skips: Tensor  # factors on the values, which are added to the outputs


class GatedGroupNorm:
    """RMS norm of each group's heads, and their gates; in float32."""

    def __init__(self, config: Mamba2Config, weight: Tensor | None, eps: float) -> None:
        """weight: [width] float32; None: there are only gates."""
        self.config = config
        self.weight = weight
        self.eps = eps

    def __call__(self, heads: Tensor, gates: Tensor) -> Tensor:
        """Return the norm of heads [num_tokens, width] float32, in the same shape; `heads` may be overwritten."""
        gates = F.silu(gates.float() * self.config.multipliers.gates)
        if self.weight is None:
            return heads.mul_(gates)
        if self.config.gate_place == "after_norm":
            return self._normed(heads, self.weight).mul_(gates)
        return self._normed(heads.mul_(gates), self.weight)

    def _normed(self, heads: Tensor, weight: Tensor) -> Tensor:
        groups = heads.view(len(heads), self.config.num_groups, -1)
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.eps)
        return (groups * scale).flatten(1).mul_(weight)


class Mamba2Mixer:
    """Convolution over the last tokens, the selective state space, and a gated norm of its output."""

    def __init__(
        self,
        config: Mamba2Config,
        inputs: MambaInputs,
        conv: CausalConv,
        parameters: HeadParameters,
        norm: GatedGroupNorm,
        output: Projection,
        states: LayerStates,
    ) -> None:
        self.config = config
        self.inputs = inputs
        self.conv = conv
        self.parameters = parameters
        self.norm = norm
        self.output = output
        self.states = states

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape; layer_cache: the whole KV pool."""
        config, factors = self.config, self.config.multipliers
        assert batch.states is not None, "the batch of a recurrent model has the blocks of its states"
        x = x if factors.input == 1 else x * factors.input
        gates, mixed = self.inputs.mixed(x).split_with_sizes([config.width, config.conv_width], dim=1)
        logits = self.inputs.steps(x).float() * factors.steps + self.parameters.step_bias
        steps = F.softplus(logits).clamp_(*config.step_limits)  # [num_tokens, num_heads]
        states = self.states.read(layer_cache, batch.states)
        earlier, matrices = self.states.tensors(states)
        heads = self._apply(self._convolved(mixed, earlier, batch), steps, matrices, batch)
        self.states.write(layer_cache, batch.states, states)
        output = self.output(self.norm(heads, gates).to(x.dtype))
        return output if config.output_multiplier == 1 else output * config.output_multiplier

    def _convolved(self, mixed: Tensor, earlier: Tensor, batch: Batch) -> Tensor:
        parts, end = [], 0
        for rows, length in batch.runs():
            start, end = end, end + (rows.stop - rows.start) * length
            parts.append(self.conv(mixed[start:end].view(-1, length, self.config.conv_width), earlier[rows]))
        return torch.cat(parts)

    def _apply(self, mixed: Tensor, steps: Tensor, matrices: Tensor, batch: Batch) -> Tensor:
        """Return the state space's output [num_tokens, width] for the convolution's [num_tokens, conv_width].

        matrices: [num_seqs, num_groups, state_dim, group_width], updated in place.
        """
        config, num_decodes = self.config, batch.num_decodes
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
        decodes, prompts = inputs.split(num_decodes)
        outputs = [step_space(decodes, matrices[:num_decodes])] if num_decodes else []
        if lengths := batch.query_lens_list[num_decodes:]:
            outputs.append(scan_space(prompts, lengths, matrices[num_decodes:]))
        output = torch.cat(outputs).view_as(heads)
        return output.addcmul_(heads, self.parameters.skips.unsqueeze(-1)).flatten(1)


def load_mamba(
    weights: Weights, prefix: str, config: Mamba2Config, hidden_size: int, eps: float, states: LayerStates
) -> Mamba2Mixer:
    """Load the mixer with the tensors `prefix`.in_proj etc."""
    factors, count, width = config.multipliers, config.num_heads, config.conv_width
    decays, bias, skips = (
        weights.take(f"{prefix}.{name}", count, dtype=torch.float32) for name in ("A_log", "dt_bias", "D")
    )
    filters = weights.take(f"{prefix}.conv1d.weight", width, 1, config.conv_size, dtype=torch.float32)
    conv_bias = weights.take(f"{prefix}.conv1d.bias", width, dtype=torch.float32) if config.has_conv_bias else None
    group = config.num_groups * config.state_dim
    parts = ((factors.values, config.width), (factors.writes, group), (factors.reads, group))
    scales = torch.cat([torch.full((size,), factor, device=filters.device) for factor, size in parts])
    norm = None
    if config.gate_place != "no_norm":
        norm = weights.take(f"{prefix}.norm.weight", config.width, dtype=torch.float32)
    return Mamba2Mixer(
        config,
        _load_inputs(weights, prefix, config, hidden_size),
        CausalConv((filters.squeeze(1).T * scales).contiguous(), conv_bias),
        HeadParameters(-decays.exp(), bias, skips),
        GatedGroupNorm(config, norm, eps),
        load_linear(weights, f"{prefix}.out_proj", config.width, hidden_size, bias=config.has_output_bias),
        states,
    )


def _load_inputs(weights: Weights, prefix: str, config: Mamba2Config, hidden_size: int) -> MambaInputs:
    """Load the projection of a layer's input; the rows of the steps, which are few, are not rounded."""
    width, name, bias = config.width + config.conv_width, f"{prefix}.in_proj", config.has_input_bias
    total = width + config.num_heads
    mixed = load_slices(weights, name, hidden_size, total, [slice(0, width)], bias=bias)
    rows = [(slice(width, total),)]
    steps = peek_all(weights, [f"{name}.weight"], [total], hidden_size, wanted=rows)
    step_bias = stack(weights, [f"{name}.bias"], [total], wanted=rows) if bias else None
    return MambaInputs(mixed, make_linear(weights, steps, step_bias, quantization=None))
