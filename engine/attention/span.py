"""Earlier tokens that a token attends to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """The last `size` tokens, the token itself included, or those of its own chunk of `size` tokens; None: all."""

    size: int | None = None
    is_chunked: bool = False

    def first(self, position: int) -> int:
        """Return the position of the first token that the token at `position` attends to."""
        if self.size is None:
            return 0
        return position // self.size * self.size if self.is_chunked else max(0, position - self.size + 1)


FULL = AttentionSpan()
