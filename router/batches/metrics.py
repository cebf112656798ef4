"""Metrics of batches."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from baton.router.metrics.metrics import PREFIX


class BatchMetrics:
    """Series of the batches that this router runs."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def count(name: str, text: str, label: str) -> Counter:
            return Counter(PREFIX + name, text, ["model_name", label], registry=registry)

        self._registry, self._model_name = registry, model_name
        self._requests = count("batch_requests", "Requests of batches that have a result, by HTTP status.", "status")
        self._repeats = count("batch_requests_repeated", "Requests of batches to be run again, by reason.", "reason")
        self._batches = count("batches", "Batches that ended, by status.", "status")
        for reason in ("displaced", "refused"):
            self._repeats.labels(model_name, reason)

    def watch(self, num_running: Callable[[], int]) -> None:
        """Export the number of batches that this router owns."""
        gauge = Gauge(f"{PREFIX}batches_running", "Batches in progress.", ["model_name"], registry=self._registry)
        gauge.labels(self._model_name).set_function(num_running)

    def request_done(self, status: int) -> None:
        """Count a request that has its result."""
        self._requests.labels(self._model_name, str(status)).inc()

    def displaced(self) -> None:
        """Count a request that was cancelled in favour of interactive ones."""
        self._repeats.labels(self._model_name, "displaced").inc()

    def refused(self) -> None:
        """Count a request that got 429 or 503."""
        self._repeats.labels(self._model_name, "refused").inc()

    def ended(self, status: str) -> None:
        """Count a batch that ended."""
        self._batches.labels(self._model_name, status).inc()
