"""The draft model or head that an engine's options name, as its files describe it; no torch."""

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.speculation.config import DRAFT_MODEL, LOOKUPS, SpeculationConfig
from baton.engine.speculation.draft_checkpoint import DraftCheckpoint
from baton.engine.speculation.heads.head_checkpoint import HeadCheckpoint

Draft = DraftCheckpoint | HeadCheckpoint


def draft_of(engine: EngineConfig, target: ModelConfig) -> Draft | None:
    """Return the draft model or head of an engine; None: it has none.

    Raises InvalidCheckpoint or UnsupportedModel if it cannot draft for this model.
    """
    options = SpeculationConfig.parse(engine.speculative_config)
    if options is None or options.method in LOOKUPS:
        return None
    if options.method == DRAFT_MODEL:
        return DraftCheckpoint.of(engine, target)
    return HeadCheckpoint.of(engine, target, options)
