"""Kinds of attention: how a layer's attention differs from the other layers'."""

from dataclasses import dataclass

from torch import Tensor

from baton.engine.attention.span import FULL, AttentionSpan


@dataclass(frozen=True, slots=True, eq=False)
class AttentionKind:
    """Span of a layer's attention, its sinks, and the KV group that its blocks are of."""

    span: AttentionSpan = FULL
    sinks: Tensor | None = None  # [num_heads] fp32: logits that take part in the softmax without a value (GPT-OSS)
    group: int = 0


PLAIN = AttentionKind()
