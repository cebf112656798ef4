"""The model that computed KV, for engines that take KV from other quantizations of their model."""

from collections.abc import Iterable
from dataclasses import dataclass

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import UnsupportedModel


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
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[model.dtype]


def check_mixable(model: ModelConfig) -> None:
    """Raise UnsupportedModel if a checkpoint's KV may be scaled differently from that of its source.

    AWQ (arXiv 2306.00978) moves the scales of a projection's inputs into what computes them. With multi-head latent
    attention that is the norm of the cached latents; without grouped queries it is the projection of values.
    """
    is_awq = model.stored_quantization is not None and model.stored_quantization.method == "awq"
    if is_awq and (model.mla is not None or model.num_heads == model.num_kv_heads):
        scaled = "latents" if model.mla is not None else "values"
        raise UnsupportedModel(
            f"allow_mixed_quantization: AWQ checkpoints of this architecture may have {scaled} with scales of their "
            "own, which other checkpoints cannot use; use another format, or leave it out"
        )


def mixed_quantization(foreign: Iterable[KVOrigin], own: KVOrigin) -> str:
    """Return the sources of a request's KV and the model that uses it, as in `gptq->bf16`; empty without sources."""
    sources = sorted({origin.quantization for origin in foreign})
    return f"{','.join(sources)}->{own.quantization}" if sources else ""
