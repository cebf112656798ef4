"""The model that computed KV, for engines that take KV from other quantizations of their model."""

from collections.abc import Iterable
from dataclasses import dataclass

from baton.engine.config import EngineConfig, ModelConfig


@dataclass(frozen=True, slots=True, order=True)
class KVOrigin:
    """A model with its exact weights, as the source of KV."""

    quantization: str  # such as gptq, or the type of plain weights
    fingerprint: str  # covers the weights too, so two checkpoints in one format differ


NO_ORIGINS: frozenset[KVOrigin] = frozenset()


def quantization_name(engine: EngineConfig, model: ModelConfig) -> str:
    """Return the format of an engine's weights: the rounding at load, the stored format, or the type."""
    if engine.quantization is not None:
        return engine.quantization
    if model.stored_quantization is not None:
        return model.stored_quantization.method
    return {"bfloat16": "bf16", "float32": "fp32"}[model.dtype]


def mixed_quantization(foreign: Iterable[KVOrigin], own: KVOrigin) -> str:
    """Return the sources of a request's KV and the model that uses it, as in `gptq->bf16`; empty without sources."""
    sources = sorted({origin.quantization for origin in foreign})
    return f"{','.join(sources)}->{own.quantization}" if sources else ""
