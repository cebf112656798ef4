"""The places of completions in flight, which the models of a router share: each takes memory, whatever its model."""

from typing import Protocol


def reserved_places(max_inflight: int, num_models: int) -> int:
    """Return the places that are reserved for each model: all for a single one, otherwise half in equal parts."""
    return max_inflight if num_models == 1 else max_inflight // (2 * num_models)


class ModelQueue(Protocol):
    """The completions of one model."""

    @property
    def num_inflight(self) -> int:
        """Completions in flight."""
        ...

    def serve(self, now_s: float) -> None:
        """Admit waiting requests while there is room."""
        ...


class SharedPlaces:
    """`max_inflight` places. A model may take all that are not reserved for another one.

    So a model whose workers are slow cannot keep the requests of the others waiting. No request has more completions
    than are reserved for its model, so each finds room once earlier ones of its own model have ended.
    """

    def __init__(self, max_inflight: int, num_models: int) -> None:
        self._max_inflight = max_inflight
        self._num_reserved = reserved_places(max_inflight, num_models)
        self._queues: list[ModelQueue] = []

    def join(self, queue: ModelQueue) -> None:
        """Add a model's queue."""
        self._queues.append(queue)

    def num_free(self, queue: ModelQueue) -> int:
        """Return the completions that a model may add now."""
        others = (max(each.num_inflight, self._num_reserved) for each in self._queues if each is not queue)
        return self._max_inflight - queue.num_inflight - sum(others)

    def serve(self, now_s: float) -> None:
        """Admit waiting requests of any model after a place became free; the model with the fewest in flight first."""
        for queue in sorted(self._queues, key=lambda each: each.num_inflight):
            queue.serve(now_s)
