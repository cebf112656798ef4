"""How a dataset's lengths are fitted to a model."""

from dataclasses import dataclass

from baton.loadtool.errors import SettingError


@dataclass(frozen=True, slots=True)
class Lengths:
    """Every length times the scale; what is still longer than the limit is cut to it."""

    scale: float = 1.0
    max_input: int | None = None  # tokens
    max_output: int | None = None
    output: int | None = None  # this many for every request, whatever the dataset says

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise SettingError(f"--scale-lengths {self.scale:g}: it must be above 0")

    def num_input(self, num_tokens: int) -> int:
        """Tokens of a prompt."""
        return _fitted(num_tokens * self.scale, self.max_input)

    def num_output(self, num_tokens: int) -> int:
        """Tokens of an answer."""
        return self.output or _fitted(num_tokens * self.scale, self.max_output)


def _fitted(length: float, limit: int | None) -> int:
    num_tokens = max(1, round(length))
    return num_tokens if limit is None else min(num_tokens, limit)
