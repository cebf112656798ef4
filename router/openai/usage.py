"""What an answer cost, as OpenAI counts it."""

from baton.router.generation import ChoiceDelta, cached_tokens


class Usage:
    """Counts the tokens of one answer, over all its prompts and choices."""

    def __init__(self, num_prompt_tokens: int, num_seen: int = 0) -> None:
        """`num_seen`: output tokens that the client of a resumed request has, and was charged for, with the prompt."""
        self._num_prompt_tokens = num_prompt_tokens
        self._num_completion_tokens = num_seen
        self._num_charged = num_prompt_tokens + num_seen if num_seen else 0
        self._cached_tokens: dict[int, int] = {}  # by prompt, of its first choice

    def add(self, delta: ChoiceDelta, num_choices: int) -> None:
        """Counts news; `num_choices` is that of each prompt."""
        self._num_completion_tokens += len(delta.token_ids)
        if delta.served_by is not None and delta.index % num_choices == 0:
            self._cached_tokens.setdefault(delta.index // num_choices, cached_tokens(delta.served_by))

    def charge_again(self, num_tokens: int) -> None:
        """Charge for tokens of which the client has paid for an earlier attempt: they are computed again."""
        self._num_charged -= num_tokens

    def uncharged(self) -> int:
        """The tokens that no earlier call has told."""
        num_tokens = self._num_prompt_tokens + self._num_completion_tokens
        num_new, self._num_charged = num_tokens - self._num_charged, num_tokens
        return num_new

    def body(self) -> dict[str, object]:
        """The usage object."""
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_completion_tokens,
            "completion_tokens": self._num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens.values())},
        }
