"""Metrics of waiting and refused requests."""

from collections.abc import Callable
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from baton.router.metrics.metrics import PREFIX

WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)


class Refusal(Enum):
    """Why a request was not served."""

    DRAINING = "draining"  # the router is shutting down
    QUEUE_FULL = "queue_full"
    DISPLACED = "displaced"  # it waited, and a more urgent request or another key's displaced it
    DEADLINE = "deadline"  # its deadline would have expired in the queue
    WAIT = "wait"  # it would have waited, or did wait, longer than the limit
    EXPIRED = "expired"  # its deadline expired in the queue
    NO_WORKER = "no_worker"  # there was no decode worker while it waited


STATUSES = {Refusal.DRAINING: 503, Refusal.EXPIRED: 504, Refusal.NO_WORKER: 503}  # of HTTP; of all others 429


class AdmissionMetrics:
    """Metrics of the router's queue."""

    def __init__(
        self,
        registry: CollectorRegistry,
        model_name: str,
        num_held: Callable[[], int] = lambda: 0,
        note_refusal: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        """`num_held`: completions out of the queue that wait for a first worker. `note_refusal` gets each reason
        and its HTTP status.
        """
        self._registry = registry
        self._note_refusal = note_refusal
        self._num_held = num_held
        self._model_name = model_name
        refusals = Counter(
            f"{PREFIX}router_refusals", "Requests not served, by reason.", ["model_name", "reason"], registry=registry
        )
        self._refusals = {reason: refusals.labels(model_name, reason.value) for reason in Refusal}
        wait = Histogram(
            f"{PREFIX}request_queue_time_seconds",
            "Time in the router's queue, of the requests that waited there and were then admitted.",
            ["model_name"],
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self._wait = wait.labels(model_name)

    def watch(self, num_waiting: Callable[[], int], capacity: Callable[[], int]) -> None:
        """Export the queue's length and the router's capacity, both in completions, from these callbacks."""
        for name, text, read in (
            (
                "router_waiting",
                "Completions in the router's queue, or waiting for a first worker.",
                lambda: num_waiting() + self._num_held(),
            ),
            ("router_capacity", "Completions that may be in flight before further ones wait.", capacity),
        ):
            gauge = Gauge(f"{PREFIX}{name}", text, ["model_name"], registry=self._registry)
            gauge.labels(self._model_name).set_function(read)

    def waited(self, wait_s: float) -> None:
        """Record the wait of a request that was admitted from the queue."""
        self._wait.observe(wait_s)

    def refused(self, reason: Refusal) -> None:
        """Count a request that was not served."""
        self._refusals[reason].inc()
        self._note_refusal(reason.value, STATUSES.get(reason, 429))
