"""Queue of waiting requests: by priority, then round robin between keys, then by arrival.

Within a priority each key has its own line. The lines take turns by deficit round robin (Shreedhar and Varghese,
1996): a line earns one completion per turn, and its first ticket leaves once the line has earned all completions of
that ticket. So keys get equal shares of the completions, whatever the sizes and the number of their requests. An empty
line is removed together with its credit.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in the queue."""

    num_completions: int
    priority: int  # lower is served earlier
    fairness_key: str


T = TypeVar("T", bound=Ticket)


@dataclass(slots=True, eq=False)
class _Line(Generic[T]):
    """The tickets of one key, by arrival."""

    tickets: "OrderedDict[T, None]" = field(default_factory=OrderedDict)
    num_completions: int = 0
    credit: int = 1  # completions earned and not used; one is earned per turn

    @property
    def first(self) -> T:
        """The oldest ticket."""
        return next(iter(self.tickets))

    @property
    def shortfall(self) -> int:
        """Completions that the line still has to earn for its first ticket."""
        return self.first.num_completions - self.credit


class _Lines(Generic[T]):
    """The lines of one priority, in order of their turns."""

    def __init__(self) -> None:
        self.by_key: OrderedDict[str, _Line[T]] = OrderedDict()
        self.num_completions = 0

    def add(self, ticket: T) -> None:
        """Add a ticket. A key without a line gets its turn after all others."""
        line = self.by_key.setdefault(ticket.fairness_key, _Line())
        line.tickets[ticket] = None
        line.num_completions += ticket.num_completions
        self.num_completions += ticket.num_completions

    def remove(self, ticket: T, charge: bool) -> None:
        """Remove a ticket; `charge`: it was served."""
        line = self.by_key[ticket.fairness_key]
        del line.tickets[ticket]
        line.num_completions -= ticket.num_completions
        line.credit -= ticket.num_completions if charge else 0
        self.num_completions -= ticket.num_completions
        if not line.tickets:
            del self.by_key[ticket.fairness_key]

    def head(self) -> T:
        """Return the ticket whose turn it is. It stays the same until it is removed: a line with enough credit keeps
        its turn.
        """
        num_turns = 0
        while True:
            key, line = next(iter(self.by_key.items()))
            if line.shortfall <= 0:
                return line.first
            line.credit += 1
            self.by_key.move_to_end(key)
            num_turns += 1
            if num_turns == len(self.by_key):
                self._skip_rounds()

    def last_of_longest(self, num_kept: int) -> Iterator[T]:
        """Yield tickets to displace: always the last one of the line that is longest then.

        Each line keeps at least `num_kept` completions.
        """
        lines = {key: reversed(line.tickets) for key, line in self.by_key.items() if line.num_completions > num_kept}
        longest = [(-self.by_key[key].num_completions, key) for key in lines]
        heapify(longest)
        while longest:
            negative, key = heappop(longest)
            ticket = next(lines[key])
            num_left = -negative - ticket.num_completions
            if num_left < num_kept:
                continue
            yield ticket
            if num_left > num_kept:
                heappush(longest, (-num_left, key))

    def _skip_rounds(self) -> None:
        """Credit all rounds in which no ticket can leave at once: large tickets need many rounds."""
        num_rounds = max(0, min(line.shortfall for line in self.by_key.values()))
        for line in self.by_key.values():
            line.credit += num_rounds


class FairQueue(Generic[T]):
    """The order of the waiting requests."""

    def __init__(self) -> None:
        self.num_completions = 0
        self._lines: dict[int, _Lines[T]] = {}
        self._priorities: list[int] = []  # keys of `_lines`, most urgent first

    def add(self, ticket: T) -> None:
        """Add a request."""
        lines = self._lines.get(ticket.priority)
        if lines is None:
            lines = self._lines[ticket.priority] = _Lines()
            insort(self._priorities, ticket.priority)
        lines.add(ticket)
        self.num_completions += ticket.num_completions

    def head(self) -> T:
        """Return the request whose turn it is. The queue must not be empty."""
        return self._lines[self._priorities[0]].head()

    def take(self, ticket: T) -> None:
        """Remove a request that is served, and charge its key for its completions."""
        self._remove(ticket, charge=True)

    def remove(self, ticket: T) -> None:
        """Remove a request that is not served."""
        self._remove(ticket, charge=False)

    def tickets(self) -> list[T]:
        """Return all waiting requests, in no particular order."""
        lines = (line for each in self._lines.values() for line in each.by_key.values())
        return [ticket for line in lines for ticket in line.tickets]

    def num_ahead(self, ticket: Ticket) -> int:
        """Return the completions that would be served before this request's if it joined now and no other followed."""
        num_ahead = sum(self._lines[each].num_completions for each in self._priorities if each < ticket.priority)
        lines = self._lines.get(ticket.priority)
        if lines is None:
            return num_ahead
        own = lines.by_key.get(ticket.fairness_key)
        num_own = own.num_completions if own is not None else 0
        share = num_own + ticket.num_completions  # upper bound of what each other key is served until then
        others = (line for line in lines.by_key.values() if line is not own)
        return num_ahead + num_own + sum(min(line.num_completions, share) for line in others)

    def displaced_by(self, ticket: Ticket, num_completions: int) -> list[T]:
        """Return the requests to displace to make room for `num_completions` of this one; empty: it must not wait.

        The least urgent requests are displaced first, and among them the latest of the longest line. Eligible are all
        requests that are less urgent than this one, and those of its priority whose line stays at least as long as
        the line of its key. So a key that floods the queue displaces only itself.
        """
        displaced: list[T] = []
        for priority in reversed(self._priorities):
            if priority < ticket.priority:
                break
            lines, num_kept = self._lines[priority], 0
            if priority == ticket.priority:
                own = lines.by_key.get(ticket.fairness_key)
                num_kept = ticket.num_completions + (own.num_completions if own is not None else 0)
            for each in lines.last_of_longest(num_kept):
                displaced.append(each)
                num_completions -= each.num_completions
                if num_completions <= 0:
                    return displaced
        return []

    def _remove(self, ticket: T, charge: bool) -> None:
        lines = self._lines[ticket.priority]
        lines.remove(ticket, charge)
        self.num_completions -= ticket.num_completions
        if not lines.by_key:
            del self._lines[ticket.priority]
            self._priorities.remove(ticket.priority)
