"""Scales of FP8 KV: one for a layer's keys and one for its values, fixed by the checkpoint.

Keys and values are divided by them before rounding. They have the tensor names that vLLM reads: `k_scale` and `v_scale`
of the attention, of its projections or of its inner module, or one `kv_scale` for both. Default: 1. Both ends of a
handover read the same scales from the checkpoint, so they are never transferred.
"""

import math
from dataclasses import dataclass

import torch

from baton.engine.checkpoint.weights import Weights
from baton.engine.errors import InvalidCheckpoint

KEY_NAMES = ("k_scale", "k_proj.k_scale", "attn.k_scale")
VALUE_NAMES = ("v_scale", "v_proj.v_scale", "attn.v_scale")
COMMON_NAME = "kv_scale"
LAST_NAMES = (".k_scale", ".v_scale", ".kv_scale")  # suffixes of all these tensors' full names


@dataclass(frozen=True, slots=True)
class KVScales:
    """FP8 scales of one layer: a cached key is the key divided by `key`, rounded; likewise for values."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KVScales()


def load_kv_scales(weights: Weights, prefix: str) -> KVScales:
    """Load the KV scales of the attention with the tensors `prefix`.q_proj etc.; 1 if there are none.

    Raises InvalidCheckpoint if only one of the two exists, or a scale is not finite and positive.
    """
    common = _scale(weights, prefix, (COMMON_NAME,))
    key, value = (_scale(weights, prefix, names) for names in (KEY_NAMES, VALUE_NAMES))
    if (key is None) != (value is None):
        has, lacks = ("k_scale", "v_scale") if value is None else ("v_scale", "k_scale")
        raise InvalidCheckpoint(f"{prefix} has a {has} but no {lacks}: KV needs both, or neither")
    if key is None or value is None:
        return UNSCALED if common is None else KVScales(common, common)
    return KVScales(key, value)


def _scale(weights: Weights, prefix: str, names: tuple[str, ...]) -> float | None:
    for name in (f"{prefix}.{name}" for name in names):
        if name in weights:
            try:
                tensor = weights.take(name, dtype=torch.float32)
            except InvalidCheckpoint:  # stored as a vector of one element
                tensor = weights.take(name, 1, dtype=torch.float32)
            scale = float(tensor)
            if not (math.isfinite(scale) and scale > 0):
                raise InvalidCheckpoint(f"tensor {name} is {scale}: a KV scale must be a finite number above 0")
            return scale
    return None
