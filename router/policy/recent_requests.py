"""How many of a router's requests a worker got lately."""

from dataclasses import dataclass

WINDOW = 512  # requests of the router: the weight of one falls to 1/e in so many
FAIRNESS_SLACK = 4.0  # requests by which workers differ without its meaning anything


@dataclass(frozen=True, slots=True)
class RecentRequests:
    """A decayed count, as it stood at a turn of the router."""

    count: float = 0.0
    turn: int = 0

    def with_one(self, turn: int) -> "RecentRequests":
        """The same when the worker got one more at this turn."""
        return RecentRequests(self.at(turn) + 1, turn)

    def at(self, turn: int) -> float:
        """The count at a later turn."""
        return self.count * (1 - 1 / WINDOW) ** max(0, turn - self.turn)


NO_REQUESTS = RecentRequests()


def fair_count(turn: int, num_workers: int) -> float:
    """What each would have at a turn if all had got the same."""
    return WINDOW * (1 - (1 - 1 / WINDOW) ** turn) / max(1, num_workers)


def excess(recent: RecentRequests, turn: int, fair: float) -> float:
    """By what share a worker got more than the `fair_count`; 0 if it got no more."""
    return max(0.0, (recent.at(turn) + FAIRNESS_SLACK) / (fair + FAIRNESS_SLACK) - 1)
