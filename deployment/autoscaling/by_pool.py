"""Pair of values, one for each pool."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class ByPool(Generic[T]):
    """A value for the prefill pool and one for the decode pool."""

    prefill: T
    decode: T

    def map(self, function: Callable[[T], U]) -> "ByPool[U]":
        """Apply the function to both values."""
        return ByPool(function(self.prefill), function(self.decode))

    def zip(self, other: "ByPool[U]") -> "ByPool[tuple[T, U]]":
        """Pair each value with the other's value for the same pool."""
        return ByPool((self.prefill, other.prefill), (self.decode, other.decode))

    def both(self) -> tuple[T, T]:
        """Return both values, prefill first."""
        return self.prefill, self.decode
