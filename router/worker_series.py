"""The workers' own numbers, as their last reports have them, and how well the router knows them, for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from protos.worker_pb2 import WorkerLoad
from router.metrics import PREFIX
from router.worker_pool import WorkerPool

LABELS = ("model_name", "worker")
GAUGES = {
    "num_requests_running": ("Requests in the worker's batch.", "num_running"),
    "num_requests_waiting": ("Requests admitted and not in the batch.", "num_waiting"),
    "num_queued_tokens": ("Tokens to compute before all admitted requests are decoding.", "num_queued_tokens"),
    "step_seconds": ("Recent seconds a step.", "step_s"),
}
COUNTERS = {
    "num_preemptions": ("Preemptions.", "num_preemptions"),
    "worker_generation_tokens": ("Tokens that the worker generated.", "num_generated_tokens"),
    "worker_prefilled_tokens": ("Prompt tokens that the worker computed.", "num_prefilled_tokens"),
    "handovers": ("Handovers received.", "handovers"),
    "handover_bytes": ("Bytes received by handovers.", "handover_bytes"),
    "handover_failures": ("Handovers that failed.", "handover_failures"),
    "checksum_failures": ("Blocks refused for their checksum.", "checksum_failures"),
}


def cache_usage(load: WorkerLoad) -> float:
    """Share of a worker's blocks that are in use, 0 to 1."""
    return 1 - load.num_free_blocks / load.num_blocks if load.num_blocks else 0.0


class WorkerSeries(Collector):
    """Reads the pool whenever it is scraped; a worker without a connection has no series."""

    def __init__(self, pool: WorkerPool, model_name: str) -> None:
        self._pool = pool
        self._model_name = model_name

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All series of all workers."""
        loads = {
            connection.description.worker_id: connection.load.reported
            for connection in self._pool.connections
            if connection.description is not None
        }
        usage = GaugeMetricFamily(f"{PREFIX}kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", labels=LABELS)
        for worker_id, load in loads.items():
            usage.add_metric((self._model_name, worker_id), cache_usage(load))
        yield usage
        for name, (text, attribute) in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=LABELS)
            for worker_id, load in loads.items():
                gauge.add_metric((self._model_name, worker_id), getattr(load, attribute))
            yield gauge
        for name, (text, attribute) in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=LABELS)
            for worker_id, load in loads.items():
                counter.add_metric((self._model_name, worker_id), getattr(load, attribute))
            yield counter
        yield self._transports()
        yield from self._knowledge()

    def _knowledge(self) -> Iterator[GaugeMetricFamily]:
        """How well the router knows the workers."""
        view = self._pool.view
        for name, text, value in (
            (
                "router_degraded",
                "1 until the router knows what every worker in reach has cached.",
                self._pool.is_degraded,
            ),
            ("registry_connected", "1 while the registry can be asked.", view.error is None),
            ("registry_members", "Workers in the registry, as last listed.", len(view.members) + len(view.fixed)),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=("model_name",))
            gauge.add_metric((self._model_name,), value)
            yield gauge

    def _transports(self) -> GaugeMetricFamily:
        names = {
            connection.description.incarnation: connection.description.worker_id
            for connection in self._pool.connections
            if connection.description is not None
        }
        info = GaugeMetricFamily(
            f"{PREFIX}kv_transport_info",
            "1 for the transport in use between a worker and a peer.",
            labels=("model_name", "worker", "peer", "transport", "reason"),
        )
        for connection in self._pool.connections:
            if connection.description is None:
                continue
            for peer, text in connection.load.reported.peer_transports.items():
                transport, _, reason = text.partition(" ")
                worker_id = connection.description.worker_id
                labels = (self._model_name, worker_id, names.get(peer, peer), transport.rstrip(":,"), reason)
                info.add_metric(labels, 1)
        return info
