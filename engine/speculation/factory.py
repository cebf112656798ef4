"""The speculator that an engine's options ask for."""

from collections.abc import Callable

from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request
from baton.engine.scheduling.step_rates import StepRates
from baton.engine.speculation.acceptance import Acceptance
from baton.engine.speculation.config import SUFFIX, SpeculationConfig
from baton.engine.speculation.lookup import Lookup, LookupDrafter
from baton.engine.speculation.medusa.medusa_drafter import MedusaDrafter
from baton.engine.speculation.medusa.medusa_heads import MedusaHeads
from baton.engine.speculation.model_drafter import ModelDrafter, TwinModel
from baton.engine.speculation.ngram import NGramLookup
from baton.engine.speculation.speculator import Speculator
from baton.engine.speculation.suffix.history import SuffixLimits
from baton.engine.speculation.suffix.lookup import SuffixLookup


def speculator_of(
    config: EngineConfig,
    draft_model: TwinModel | MedusaHeads | None,
    vocab_size: int,
    blocks: BlockManager,
    finish_rule: FinishRule,
    rates: Callable[[], StepRates],
    may_draft: Callable[[Request], bool],
    num_elsewhere: Callable[[], int],
) -> Speculator | None:
    """Return the speculator of an engine; None: its requests have no drafts. For the parameters see `Speculator`."""
    options = SpeculationConfig.parse(config.speculative_config)
    if options is None:
        return None
    count, others = options.num_speculative_tokens, (blocks, finish_rule, rates, may_draft, num_elsewhere)
    if draft_model is None:
        return Speculator(count, LookupDrafter(_lookup_of(options), finish_rule), *others)
    if isinstance(draft_model, MedusaHeads):
        return Speculator(count, MedusaDrafter(draft_model, finish_rule), *others, Acceptance.of_all())
    drafter = ModelDrafter(draft_model, finish_rule, vocab_size)
    return Speculator(count, drafter, *others, Acceptance.of_all())


def _lookup_of(options: SpeculationConfig) -> Lookup:
    if options.method != SUFFIX:
        return NGramLookup(options.prompt_lookup_min, options.prompt_lookup_max)
    limits = SuffixLimits(
        options.suffix_decoding_max_tree_depth,
        options.suffix_decoding_max_spec_factor,
        options.suffix_decoding_min_token_prob,
    )
    return SuffixLookup(limits, options.suffix_decoding_max_cached_requests)
