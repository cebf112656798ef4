"""The same kind of thing for either pool."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class ByPool(Generic[T]):
    """One thing for the prefill pool, one for the decode pool."""

    prefill: T
    decode: T

    def map(self, function: Callable[[T], U]) -> "ByPool[U]":
        """The function's value for either."""
        return ByPool(function(self.prefill), function(self.decode))

    def zip(self, other: "ByPool[U]") -> "ByPool[tuple[T, U]]":
        """Each with the other's of the same pool."""
        return ByPool((self.prefill, other.prefill), (self.decode, other.decode))

    def both(self) -> tuple[T, T]:
        """In order, prefill first."""
        return self.prefill, self.decode
