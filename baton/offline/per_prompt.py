"""Arguments of a call that are given once for all prompts, or once for each."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def one_each(name: str, given: T | Sequence[T | None] | None, kind: type[T], count: int) -> list[T | None]:
    """Return an argument for each prompt, of which one stands for all. Raises ValueError."""
    if given is None or isinstance(given, kind):
        return [given] * count
    if not isinstance(given, Sequence) or any(not isinstance(each, kind | None) for each in given):
        raise ValueError(f"{name} must be a {kind.__name__}, or a list of them")
    if len(given) != count:
        raise ValueError(f"{name} has {len(given)} elements, but there are {count} prompts")
    return list(given)
