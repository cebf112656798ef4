"""Counters of structured output."""

from dataclasses import dataclass


@dataclass(slots=True)
class GrammarCounters:
    """Counts and times since the start of an engine."""

    num_compiles: int = 0
    compile_s: float = 0.0  # of grammars that were not in the cache
    num_cache_hits: int = 0
    num_masks: int = 0
    mask_s: float = 0.0  # of matching a token and filling the next mask, over all threads
    num_forced: int = 0  # tokens appended without a step of their own
    num_late_masks: int = 0  # not filled in time, so that their requests missed a step
