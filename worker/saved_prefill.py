"""Seconds of prefill that a worker's caches have saved, estimated from its measured rate."""

from collections.abc import Mapping

POOL = "kv_cache"  # the tier of the prefix cache; the others are named after their stores


class SavedPrefill:
    """Sums of saved seconds, by tier. They grow when `note` is called, by what was found since the call before."""

    def __init__(self) -> None:
        self._num_tokens: dict[str, int] = {}
        self._saved_s: dict[str, float] = {}

    def note(self, num_tokens: Mapping[str, int], prefill_tokens_per_s: float) -> Mapping[str, float]:
        """Record how many tokens each tier has had since the start; return the saved seconds.

        prefill_tokens_per_s: 0: not known yet, so that the tokens count at a later call.
        """
        for tier, count in num_tokens.items():
            self._saved_s.setdefault(tier, 0.0)
            if prefill_tokens_per_s > 0:
                num_new = max(0, count - self._num_tokens.get(tier, 0))
                self._saved_s[tier] += num_new / prefill_tokens_per_s
                self._num_tokens[tier] = count
        return dict(self._saved_s)
