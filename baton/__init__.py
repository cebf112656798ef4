"""Disaggregated serving of large language models. `LLM`, for offline inference, is imported when it is first used."""

from importlib import import_module

OFFLINE = {
    "LLM": "llm",
    "LoRARequest": "adapters",
    "SamplingParams": "sampling_params",
    "StructuredOutputsParams": "structured_outputs",
    "RequestOutput": "outputs",
    "CompletionOutput": "outputs",
    "EmbeddingRequestOutput": "outputs",
    "ScoringRequestOutput": "outputs",
}  # by module of baton/offline

__all__ = list(OFFLINE)


def __getattr__(name: str) -> object:
    """Return a name of the offline API. Raises AttributeError for others."""
    if name not in OFFLINE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.offline.{OFFLINE[name]}"), name)


def __dir__() -> list[str]:
    """Return the names for completion."""
    return [*globals(), *OFFLINE]
