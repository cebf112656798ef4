"""Weights of a draft model or head."""

import torch

from baton.engine.models.causal_lm import CausalLM
from baton.engine.speculation.draft_checkpoint import DraftCheckpoint
from baton.engine.speculation.draft_model import DraftWeights
from baton.engine.speculation.drafts import Draft
from baton.engine.speculation.heads.draft_head import HeadWeights
from baton.engine.speculation.medusa.medusa_checkpoint import MedusaCheckpoint
from baton.engine.speculation.medusa.medusa_heads import MedusaWeights


def load_draft(draft: Draft, target: CausalLM, device: torch.device) -> DraftWeights | HeadWeights | MedusaWeights:
    """Load a draft model or head for a model. Raises InvalidCheckpoint or UnsupportedModel."""
    if isinstance(draft, DraftCheckpoint):
        return DraftWeights.load(draft, device)
    if isinstance(draft, MedusaCheckpoint):
        return MedusaWeights.load(draft, target, device)
    return HeadWeights.load(draft, target, device)
