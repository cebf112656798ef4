"""The models of a router's workers.

A registry says which model a worker serves. At a fixed address the worker itself does: the pool of the router's first
model asks it, and the address then belongs to the pool of the worker's model.
"""

import logging
from collections.abc import Callable, Collection, Sequence

logger = logging.getLogger(__name__)

MAX_SHOWN_MODELS = 20  # in a log line


class WorkerModels:
    """The names of a router's models, and the model of each worker at a fixed address."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of the router's models."""
        self.names = tuple(names)
        self._by_address: dict[str, str] = {}  # of fixed addresses whose workers serve another model than the first
        self._listeners: list[Callable[[], None]] = []
        self._unknown: frozenset[str] = frozenset()  # models of other routers, as last logged

    def __str__(self) -> str:
        """Return the names for messages."""
        return ", ".join(self.names)

    def at(self, address: str) -> str:
        """Return the model whose pool has a fixed address."""
        return self._by_address.get(address, self.names[0])

    def move(self, address: str, model: str) -> bool:
        """Give a fixed address to the pool of the worker's model. Return False if the router has no such model."""
        if model not in self.names:
            return False
        self._by_address[address] = model
        for listener in self._listeners:
            listener()
        return True

    def watch(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever an address moves."""
        self._listeners.append(listener)

    def note(self, models: Collection[str]) -> None:
        """Log when the registry has workers of further models: otherwise a wrong name would be hard to find."""
        unknown = frozenset(models).difference(self.names)
        if unknown - self._unknown:
            others = ", ".join(sorted(unknown)[:MAX_SHOWN_MODELS])
            logger.info("workers of other models are ignored: this router serves %s, not %s", self, others)
        self._unknown = unknown
