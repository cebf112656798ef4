"""Which of a router's commands a worker has taken, so that the router adds to a report only what is not in it."""

from collections.abc import Iterator
from contextlib import contextmanager

MAX_UNTOLD = 1 << 16  # numbers that a watcher may lag behind; with more it is told none, and takes all for told


class TakenCommands:
    """Owns, for each watcher, the numbers that it has not been told of yet."""

    def __init__(self) -> None:
        self._untold: dict[str, list[list[int]]] = {}  # by router; a router may watch twice while it reconnects

    @contextmanager
    def watched(self, router_id: str) -> Iterator[list[int]]:
        """The numbers taken from the router since; the watcher empties the list whenever it has told them."""
        untold: list[int] = []
        watchers = self._untold.setdefault(router_id, [])
        watchers.append(untold)
        try:
            yield untold
        finally:
            watchers[:] = [each for each in watchers if each is not untold]
            if not watchers:
                del self._untold[router_id]

    def note(self, router_id: str, number: int) -> None:
        """The engine has the command, or has refused it."""
        if number:
            for untold in self._untold.get(router_id, ()):
                if len(untold) < MAX_UNTOLD:
                    untold.append(number)
