"""How many tokens a step may have."""

STEPS_TO_RECOVER = 256  # from nothing to the most


class StepBudget:
    """Half of a step that did not fit into memory, then a little more with every one that does."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.num_tokens = most

    def shrink(self, num_tokens: int) -> bool:
        """A step of so many tokens did not fit; False if there is no smaller one."""
        self.num_tokens = max(num_tokens // 2, 1)
        return num_tokens > 1

    def recover(self) -> None:
        """A step did fit."""
        self.num_tokens = min(self._most, self.num_tokens + max(1, self._most // STEPS_TO_RECOVER))
