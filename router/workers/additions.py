"""The load that the router's commands add to a worker, with running sums, so that a read takes constant time."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Addition:
    """Load that one command adds to a worker until a report includes it."""

    num_tokens: int  # to compute before its first token; 0 after the first token
    num_blocks: int
    is_prefill: bool  # computed for another worker, which decodes
    is_received: bool  # decoded here, and computed by another worker; False after the first token
    adapter: str = ""  # name of its adapter, which the worker loads into a slot

    def computed(self) -> "Addition":
        """Return what it adds after its first token."""
        return Addition(0, self.num_blocks, self.is_prefill, is_received=False, adapter=self.adapter)


class Additions:
    """Additions of commands, by number, and their sums."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_blocks = 0
        self.num_prefills = 0
        self.num_received = 0
        self.adapters: Counter[str] = Counter()  # commands by adapter
        self._by_number: dict[int, Addition] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def get(self, number: int) -> Addition | None:
        """Return the addition of a command; None: it is not there."""
        return self._by_number.get(number)

    def put(self, number: int, addition: Addition) -> None:
        """Add a command, or replace its addition."""
        self.pop(number)
        self._by_number[number] = addition
        self._count(addition, 1)

    def pop(self, number: int) -> Addition | None:
        """Remove a command. Returns its addition; None: it was not there."""
        addition = self._by_number.pop(number, None)
        if addition is not None:
            self._count(addition, -1)
        return addition

    def clear(self) -> None:
        """Remove all commands."""
        for number in list(self._by_number):
            self.pop(number)

    def _count(self, addition: Addition, sign: int) -> None:
        self.num_tokens += sign * addition.num_tokens
        self.num_blocks += sign * addition.num_blocks
        self.num_prefills += sign * addition.is_prefill
        self.num_received += sign * addition.is_received
        if addition.adapter:
            self.adapters[addition.adapter] += sign
            if not self.adapters[addition.adapter]:
                del self.adapters[addition.adapter]
