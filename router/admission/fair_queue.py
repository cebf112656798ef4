"""Who is next among those that wait: by priority, then in turn between keys, then by arrival.

Within a priority each key has a line of its own, and the lines take turns by deficit round robin (Shreedhar and
Varghese, 1996): a line earns one choice a turn and its first ticket leaves once the line has earned all of that
ticket's choices. So keys get equal shares of the choices, whatever the sizes of their requests and however many of
them wait. A line that is empty is forgotten, with what it had earned.
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

    num_choices: int
    priority: int  # lower is served earlier
    fairness_key: str


T = TypeVar("T", bound=Ticket)


@dataclass(slots=True, eq=False)
class _Line(Generic[T]):
    """The tickets of one key, by arrival."""

    tickets: "OrderedDict[T, None]" = field(default_factory=OrderedDict)
    num_choices: int = 0
    credit: int = 1  # choices earned and not used: one a turn

    @property
    def first(self) -> T:
        """The ticket that came first."""
        return next(iter(self.tickets))

    @property
    def shortfall(self) -> int:
        """Choices that its first ticket still has to earn."""
        return self.first.num_choices - self.credit


class _Lines(Generic[T]):
    """The lines of one priority, in the order of their turns."""

    def __init__(self) -> None:
        self.by_key: OrderedDict[str, _Line[T]] = OrderedDict()
        self.num_choices = 0

    def add(self, ticket: T) -> None:
        """A key that had nothing in line has its turn after all others."""
        line = self.by_key.setdefault(ticket.fairness_key, _Line())
        line.tickets[ticket] = None
        line.num_choices += ticket.num_choices
        self.num_choices += ticket.num_choices

    def remove(self, ticket: T, charge: bool) -> None:
        """Takes a ticket out; `charge`: it was served."""
        line = self.by_key[ticket.fairness_key]
        del line.tickets[ticket]
        line.num_choices -= ticket.num_choices
        line.credit -= ticket.num_choices if charge else 0
        self.num_choices -= ticket.num_choices
        if not line.tickets:
            del self.by_key[ticket.fairness_key]

    def head(self) -> T:
        """The ticket whose turn it is; the same until it is removed, since turns go on only when credit is short."""
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
        """Tickets that could leave, always the last of what is then the longest line; each keeps so many choices."""
        lines = {key: reversed(line.tickets) for key, line in self.by_key.items() if line.num_choices > num_kept}
        longest = [(-self.by_key[key].num_choices, key) for key in lines]
        heapify(longest)
        while longest:
            negative, key = heappop(longest)
            ticket = next(lines[key])
            num_left = -negative - ticket.num_choices
            if num_left < num_kept:
                continue
            yield ticket
            if num_left > num_kept:
                heappush(longest, (-num_left, key))

    def _skip_rounds(self) -> None:
        """Earns at once what the lines earn in the rounds in which no ticket leaves: large ones need many."""
        num_rounds = max(0, min(line.shortfall for line in self.by_key.values()))
        for line in self.by_key.values():
            line.credit += num_rounds


class FairQueue(Generic[T]):
    """Owns the order of the waiting requests."""

    def __init__(self) -> None:
        self.num_choices = 0
        self._lines: dict[int, _Lines[T]] = {}
        self._priorities: list[int] = []  # of the above, the most urgent first

    def __bool__(self) -> bool:
        return bool(self._priorities)

    def add(self, ticket: T) -> None:
        """A request waits from now on."""
        lines = self._lines.get(ticket.priority)
        if lines is None:
            lines = self._lines[ticket.priority] = _Lines()
            insort(self._priorities, ticket.priority)
        lines.add(ticket)
        self.num_choices += ticket.num_choices

    def head(self) -> T:
        """The request whose turn it is. The queue must not be empty."""
        return self._lines[self._priorities[0]].head()

    def take(self, ticket: T) -> None:
        """The request is served: it leaves, and its key has used up as many choices."""
        self._remove(ticket, charge=True)

    def remove(self, ticket: T) -> None:
        """The request leaves unserved."""
        self._remove(ticket, charge=False)

    def tickets(self) -> list[T]:
        """All that wait, in no order of service."""
        lines = (line for each in self._lines.values() for line in each.by_key.values())
        return [ticket for line in lines for ticket in line.tickets]

    def num_ahead(self, ticket: Ticket) -> int:
        """Choices that are served before this request's if it joins now and nobody else does."""
        num_ahead = sum(self._lines[each].num_choices for each in self._priorities if each < ticket.priority)
        lines = self._lines.get(ticket.priority)
        if lines is None:
            return num_ahead
        own = lines.by_key.get(ticket.fairness_key)
        num_own = own.num_choices if own is not None else 0
        share = num_own + ticket.num_choices  # what any other key is served while this one is served so much
        others = (line for line in lines.by_key.values() if line is not own)
        return num_ahead + num_own + sum(min(line.num_choices, share) for line in others)

    def displaced_by(self, ticket: Ticket, num_choices: int) -> list[T]:
        """Who should leave to make room for so many choices of this request; empty if it has no better right to wait.

        Those who came last of the longest lines, the least urgent first: all that are less urgent than the request,
        and of its own priority those whose line stays at least as long as that of the request's key. A key that floods
        the queue displaces itself and not others.
        """
        leaving: list[T] = []
        for priority in reversed(self._priorities):
            if priority < ticket.priority:
                break
            lines, num_kept = self._lines[priority], 0
            if priority == ticket.priority:
                own = lines.by_key.get(ticket.fairness_key)
                num_kept = ticket.num_choices + (own.num_choices if own is not None else 0)
            for each in lines.last_of_longest(num_kept):
                leaving.append(each)
                num_choices -= each.num_choices
                if num_choices <= 0:
                    return leaving
        return []

    def _remove(self, ticket: T, charge: bool) -> None:
        lines = self._lines[ticket.priority]
        lines.remove(ticket, charge)
        self.num_choices -= ticket.num_choices
        if not lines.by_key:
            del self._lines[ticket.priority]
            self._priorities.remove(ticket.priority)
