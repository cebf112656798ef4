"""Multi-head and grouped-query attention (arXiv 2305.13245)."""

from dataclasses import replace

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.kind import PLAIN, AttentionKind
from baton.engine.attention.kv_append import append_for, is_appendable
from baton.engine.attention.span import FULL
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.families.tensor_names import TensorNames
from baton.engine.kv.scales import KVScales, load_kv_scales
from baton.engine.layers.joint_norms import JointNorms, load_joint_norms
from baton.engine.layers.linear import Linear, Projection, load_fused, load_partial, load_slices, summed
from baton.engine.layers.norm import NO_NORM, Norm, RMSNorm
from baton.engine.ops.base import HeadNorms, Rotation
from baton.engine.ops.factory import ops_for
from baton.engine.ops.head_norms import norm_heads
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard


class GroupedQueryAttention:
    """Projections, optional norms of queries and keys (Qwen3), rotation, and the backend's attention."""

    def __init__(
        self,
        config: ModelConfig,
        qkv: Linear,
        output: Projection,
        norms: HeadNorms | JointNorms | None,
        scales: KVScales,
        backend: AttentionBackend,
        *,
        kind: AttentionKind = PLAIN,
        rotates: bool = True,
        has_keys: bool = True,
        has_values: bool = True,
        value_norm: Norm = NO_NORM,
    ) -> None:
        """config: with this rank's heads only; qkv: also to the logits of the output gate, if there is one; norms: of
        queries and keys; scales: of FP8 KV.

        kind: of the layer's attention; rotates: False for a layer without a rotary embedding; has_keys: False for a
        layer that shares the KV of another; has_values: whether `qkv` has values, otherwise they are the plain keys.
        """
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads if has_keys else 0
        self.num_values = self.num_kv_heads if has_values else 0
        self.value_norm = value_norm
        self.head_dim = config.head_dim
        self.counts = [self.num_heads + self.num_kv_heads, self.num_values, self.num_heads * config.has_output_gate]
        self.qkv = qkv
        self.output = output
        self.head_norms = norms if isinstance(norms, HeadNorms) else None
        self.joint_norms = norms if isinstance(norms, JointNorms) else None
        self.scales = scales
        self.backend = backend
        self.kind = kind
        self.rotates = rotates
        is_plain = rotates and has_keys and has_values and value_norm is NO_NORM and self.joint_norms is None
        self.can_append = is_plain and kind.group == 0  # a batch has only the first group's slots on the device

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the attention output for x [num_tokens, hidden], in the same shape; layer_cache: see the backend."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)  # [num_tokens, sum(counts), head_dim]
        qkv, gates = heads.split_with_sizes([sum(self.counts[:2]), self.counts[2]], dim=1)
        q, k, v = self._appended(qkv, rotation, layer_cache, batch) or self._rotated(qkv, rotation)
        attended = self.backend.forward(q, k, v, layer_cache, batch, self.scales, self.kind)
        if gates.shape[1]:
            attended = attended * gates.sigmoid()
        return self.output(attended.flatten(1))

    def _appended(
        self, qkv: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Append KV in one launch, and return the rotated queries and no keys and values; None if no kernel can."""
        if not self.can_append:
            return None
        append = append_for(qkv.device, qkv.dtype, layer_cache.dtype)
        if append is None or not is_appendable(qkv, self.num_heads, rotation, self.head_norms, layer_cache):
            return None
        slots = batch.slot_mapping
        q = append(qkv, self.num_heads, rotation, self.head_norms, layer_cache, slots, self.scales)
        return q, qkv[:, :0], qkv[:, :0]

    def _rotated(self, qkv: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys after their norms and rotation, and values; `qkv` may be overwritten."""
        qk, v = qkv.split_with_sizes(self.counts[:2], dim=1)
        v = self.value_norm(v if self.num_values else qk[:, self.num_heads :])  # first: the rotation is in place
        ops = ops_for(qkv.device)
        if self.joint_norms is not None:
            qk = self.joint_norms(qk)
        if self.rotates:
            qk = ops.rotate(qk, rotation, self.head_norms)
        elif self.head_norms is not None:
            qk = norm_heads(ops, qk, self.head_norms)
        q, k = qk.split_with_sizes([self.num_heads, self.num_kv_heads], dim=1)
        if rotation.query_scale is not None:
            q = (q * rotation.query_scale[:, None, None]).to(q.dtype)  # the factor itself is not rounded
        return q, k, v


def load_attention(
    weights: Weights,
    prefix: str,
    names: TensorNames,
    config: ModelConfig,
    backend: AttentionBackend,
    tensor: TensorRanks,
    layer: int,
    kv_group: int = 0,
) -> GroupedQueryAttention:
    """Load this rank's heads of a layer's attention with the tensors `prefix`.q_proj etc."""
    shard, heads = tensor.shard, config.kv_heads_of(layer)
    has_keys = config.kv_layer(layer) == layer
    has_values = not (config.keys_are_values and config.span(layer) == FULL)
    config = replace(config, num_kv_heads=heads.count, head_dim=heads.width)
    qkv = _load_qkv(weights, prefix, names, config, shard, 1 + has_keys * (1 + has_values))
    columns, bias = shard.of(config.num_heads, config.head_dim), config.attention_output_bias
    output = load_partial(
        weights, f"{prefix}.o_proj", config.num_heads * config.head_dim, config.hidden_size, columns, shard, bias=bias
    )
    return GroupedQueryAttention(
        shard.local(config),
        qkv,
        summed(output, tensor),
        _load_norms(weights, prefix, config, tensor, layer),
        load_kv_scales(weights, prefix),
        backend,
        kind=_load_kind(weights, prefix, config, shard, layer, kv_group),
        rotates=layer not in config.unrotated_layers,
        has_keys=has_keys,
        has_values=has_values,
        value_norm=_value_norm(weights, config) if has_keys and config.has_value_norm else NO_NORM,
    )


def _value_norm(weights: Weights, config: ModelConfig) -> RMSNorm:
    return RMSNorm(torch.ones(config.head_dim, dtype=weights.dtype, device=weights.device), config.rms_norm_eps)


def _load_kind(
    weights: Weights, prefix: str, config: ModelConfig, shard: TensorShard, layer: int, kv_group: int
) -> AttentionKind:
    """Load the kind of a layer's attention, with the sinks of this rank's heads if the model has any."""
    if not config.has_sinks:
        return AttentionKind(config.span(layer), group=kv_group)
    heads = shard.of(config.num_heads)
    sinks = weights.take(f"{prefix}.sinks", config.num_heads, dtype=torch.float32, part=(heads,))
    return AttentionKind(config.span(layer), sinks, kv_group)


def _load_qkv(
    weights: Weights, prefix: str, names: TensorNames, config: ModelConfig, shard: TensorShard, num_kinds: int
) -> Linear:
    """Load the projections to this rank's queries, keys and values, or the first `num_kinds` of these kinds.

    They are in one tensor, or each in its own.
    """
    head_dim, hidden, bias = config.head_dim, config.hidden_size, config.qkv_bias
    counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    sizes, rows = [count * head_dim for count in counts], [shard.of(count, head_dim) for count in counts]
    if config.has_output_gate:
        return _load_gated_qkv(weights, prefix, config, shard)
    if names.qkv is None:
        each = [f"{prefix}.{name}" for name in ("q_proj", "k_proj", "v_proj")][:num_kinds]
        return load_fused(weights, each, hidden, sizes[:num_kinds], bias=bias, rows=rows[:num_kinds])
    firsts = (0, sizes[0], sizes[0] + sizes[1])
    rows = [slice(first + part.start, first + part.stop) for first, part in zip(firsts, rows, strict=True)]
    return load_slices(weights, f"{prefix}.{names.qkv}", hidden, sum(sizes), rows, bias=bias)


def _load_gated_qkv(weights: Weights, prefix: str, config: ModelConfig, shard: TensorShard) -> Linear:
    """Load the projections to this rank's queries, keys, values and logits of output gates.

    `q_proj` has the rows of each head's query and gate after each other.
    """
    head_dim, heads = config.head_dim, range(config.num_heads)[shard.of(config.num_heads)]
    queries, gates = (
        [slice((2 * head + place) * head_dim, (2 * head + place + 1) * head_dim) for head in heads] for place in (0, 1)
    )
    kv = shard.of(config.num_kv_heads, head_dim)
    parts = [
        *(("q_proj", 2 * config.num_heads, rows) for rows in queries),
        *((name, config.num_kv_heads, kv) for name in ("k_proj", "v_proj")),
        *(("q_proj", 2 * config.num_heads, rows) for rows in gates),
    ]
    names, counts, rows = zip(*parts, strict=True)
    return load_fused(
        weights,
        [f"{prefix}.{name}" for name in names],
        config.hidden_size,
        [count * head_dim for count in counts],
        bias=config.qkv_bias,
        rows=rows,
    )


def _load_norms(
    weights: Weights, prefix: str, config: ModelConfig, tensor: TensorRanks, layer: int
) -> HeadNorms | JointNorms | None:
    """Load the norms of this rank's heads, queries first; None if the model has none."""
    if config.qk_norm is None:
        return None
    if config.qk_norm == "all":
        return load_joint_norms(weights, prefix, config, tensor)
    counts: tuple[int, ...] = (tensor.shard.share(config.num_heads), tensor.shard.share(config.num_kv_heads))
    if config.qk_norm == "unit":
        if layer in config.unrotated_layers:
            return None
        weight = torch.ones(sum(counts), config.head_dim, dtype=weights.dtype, device=weights.device)
        return HeadNorms(weight, counts, config.rms_norm_eps)
    if config.kv_layer(layer) != layer:
        counts = counts[:1]
    rows = [weights.take(f"{prefix}.{name}.weight", config.head_dim) for name in ("q_norm", "k_norm")[: len(counts)]]
    weight = torch.cat([row.repeat(count, 1) for row, count in zip(rows, counts, strict=True)])
    return HeadNorms(weight, counts, config.rms_norm_eps, config.norm_offset)
