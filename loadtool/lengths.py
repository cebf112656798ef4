"""Scaling and truncation of a dataset's lengths."""

from dataclasses import dataclass

from baton.loadtool.errors import SettingError


@dataclass(frozen=True, slots=True)
class Lengths:
    """Scale and limits of lengths, in tokens. Lengths are scaled first, then truncated."""

    scale: float = 1.0
    max_input: int | None = None  # tokens
    max_output: int | None = None
    output: int | None = None  # of every request, instead of the dataset's

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise SettingError(f"--scale-lengths {self.scale:g}: must be above 0")

    def num_input(self, num_tokens: int) -> int:
        """Return the prompt tokens for a dataset's length."""
        return _fitted(num_tokens * self.scale, self.max_input)

    def num_output(self, num_tokens: int) -> int:
        """Return the output tokens for a dataset's length."""
        return self.output or _fitted(num_tokens * self.scale, self.max_output)


def _fitted(length: float, limit: int | None) -> int:
    num_tokens = max(1, round(length))
    return num_tokens if limit is None else min(num_tokens, limit)
