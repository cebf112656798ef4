"""By what the KV of a layer is divided before it is rounded to FP8: two numbers, fixed by the checkpoint.

They stand under the names that vLLM reads: `k_scale` and `v_scale` of the attention, of its projections or of its
inner module, or one `kv_scale` for both; where there is none it is 1. What is fixed is the same at both ends of a
handover, and scales never travel.
"""

import math
from dataclasses import dataclass

import torch

from baton.engine.checkpoint.weights import Weights
from baton.engine.errors import InvalidCheckpoint

KEY_NAMES = ("k_scale", "k_proj.k_scale", "attn.k_scale")
VALUE_NAMES = ("v_scale", "v_proj.v_scale", "attn.v_scale")
COMMON_NAME = "kv_scale"
LAST_NAMES = (".k_scale", ".v_scale", ".kv_scale")  # what the full names of all of them end with


@dataclass(frozen=True, slots=True)
class KVScales:
    """A cached key is the key over `key`, a cached value the value over `value`, rounded; in FP8 alone."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KVScales()


def load_kv_scales(weights: Weights, prefix: str) -> KVScales:
    """Those of the attention whose tensors are `prefix`.q_proj and so on. Raises InvalidCheckpoint."""
    common = _scale(weights, prefix, (COMMON_NAME,))
    key, value = (_scale(weights, prefix, names) for names in (KEY_NAMES, VALUE_NAMES))
    if (key is None) != (value is None):
        has, lacks = ("k_scale", "v_scale") if value is None else ("v_scale", "k_scale")
        raise InvalidCheckpoint(f"{prefix} has a {has} and no {lacks}: KV needs both, or neither")
    if key is None or value is None:
        return UNSCALED if common is None else KVScales(common, common)
    return KVScales(key, value)


def _scale(weights: Weights, prefix: str, names: tuple[str, ...]) -> float | None:
    for name in (f"{prefix}.{name}" for name in names):
        if name in weights:
            try:
                tensor = weights.take(name, dtype=torch.float32)
            except InvalidCheckpoint:  # it has a dimension, of one element
                tensor = weights.take(name, 1, dtype=torch.float32)
            scale = float(tensor)
            if not (math.isfinite(scale) and scale > 0):
                raise InvalidCheckpoint(f"tensor {name} is {scale}: a scale of KV is a finite number above 0")
            return scale
    return None
