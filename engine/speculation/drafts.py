"""The draft model or head that an engine's options name, as its files describe it; no torch."""

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.speculation.config import DRAFT_MODEL, LOOKUPS, MEDUSA, SpeculationConfig
from baton.engine.speculation.draft_checkpoint import DraftCheckpoint
from baton.engine.speculation.heads.head_checkpoint import HeadCheckpoint
from baton.engine.speculation.medusa.medusa_checkpoint import MedusaCheckpoint

Draft = DraftCheckpoint | HeadCheckpoint | MedusaCheckpoint


def draft_of(engine: EngineConfig, target: ModelConfig) -> Draft | None:
    """Return the draft model or head of an engine; None: it has none.

    Raises InvalidCheckpoint or UnsupportedModel if it cannot draft for this model.
    """
    options = SpeculationConfig.parse(engine.speculative_config)
    if options is None or options.method in LOOKUPS:
        return None
    if options.method == DRAFT_MODEL:
        return DraftCheckpoint.of(engine, target)
    if options.method == MEDUSA:
        return MedusaCheckpoint.of(engine, target, options)
    return HeadCheckpoint.of(engine, target, options)
