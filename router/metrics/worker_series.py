"""Prometheus series of the workers, from their last load reports."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from baton.protos.worker_pb2 import WorkerLoad
from baton.router.metrics.metrics import PREFIX
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.connection import ROLES
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.pool import WorkerPool
from baton.rpc.handover_times import HandoverFamilies

LABELS = ("model_name", "worker")
GAUGES = {
    "num_requests_running": ("Requests in the worker's batch.", "num_running"),
    "num_requests_waiting": ("Requests admitted and not in the batch.", "num_waiting"),
    "num_queued_tokens": ("Tokens to compute before all admitted requests are decoding.", "num_queued_tokens"),
    "step_seconds": ("Recent seconds per step.", "step_s"),
    "kv_pins": ("Pinned prefixes.", "num_pins"),
    "kv_pinned_blocks": ("KV blocks that pinned prefixes hold.", "num_pinned_blocks"),
}
COUNTERS = {
    "num_preemptions": ("Preemptions.", "num_preemptions"),
    "worker_generation_tokens": ("Tokens that the worker generated.", "num_generated_tokens"),
    "worker_prefilled_tokens": ("Prompt tokens that the worker computed.", "num_prefilled_tokens"),
    "handovers": ("Handovers received.", "handovers"),
    "handover_bytes": ("Bytes received by handovers.", "handover_bytes"),
    "handover_failures": ("Handovers that failed.", "handover_failures"),
    "checksum_failures": ("Blocks rejected because of a wrong checksum.", "checksum_failures"),
    "grammar_compiles": ("Grammars compiled.", "num_grammar_compiles"),
    "grammar_compile_seconds": ("Seconds of compiling grammars.", "grammar_compile_s"),
    "grammar_cache_hits": ("Requests whose grammar was compiled or being compiled.", "num_grammar_cache_hits"),
    "grammar_masks": ("Token masks filled.", "num_grammar_masks"),
    "grammar_mask_seconds": ("CPU seconds of filling token masks.", "grammar_mask_s"),
    "grammar_forced_tokens": ("Output tokens that grammars forced.", "num_grammar_forced_tokens"),
    "grammar_late_masks": ("Token masks that were not filled in time.", "num_grammar_late_masks"),
    "kv_dropped_pins": ("Pins dropped because a request needed their blocks.", "num_dropped_pins"),
    "spec_decode_num_drafts": ("Drafts that the worker verified.", "num_drafts"),
    "spec_decode_num_draft_tokens": ("Drafted tokens that the worker verified.", "num_draft_tokens"),
    "spec_decode_drafting_seconds": ("Seconds that the worker's draft model or head took.", "drafting_s"),
}

TIER_GAUGES = {
    "kv_tier_num_blocks": ("KV blocks that a store holds; 0 if it does not know.", "num_blocks"),
    "kv_tier_num_bytes": ("Bytes of these blocks.", "num_bytes"),
    "kv_tier_capacity_bytes": ("Size limit of a store; 0 if it has its own.", "capacity_bytes"),
}
TIER_COUNTERS = {
    "kv_tier_fetched_blocks": ("KV blocks that the worker fetched from a store.", "fetched_blocks"),
    "kv_tier_slow_fetches": ("Fetches that ended early, since the rest was computed sooner.", "slow_fetches"),
    "kv_tier_saved_blocks": ("KV blocks that the worker wrote to a store.", "saved_blocks"),
    "kv_tier_failures": ("Failed lookups, reads and writes of KV in a store.", "failures"),
}


def cache_usage(load: WorkerLoad) -> float:
    """Return the share of a worker's blocks that are in use, 0 to 1."""
    return 1 - load.num_free_blocks / load.num_blocks if load.num_blocks else 0.0


@dataclass(frozen=True, slots=True)
class ReportingWorker:
    """A worker and its last report."""

    name: str  # worker id, followed by the address if another worker has the same id
    pool_incarnation: str  # by which peers name it
    address: str
    role: WorkerRole
    load: WorkerLoad
    block_size: int


class WorkerSeries(Collector):
    """Collector that reads the pool at each scrape. A worker has no series before its first report."""

    def __init__(self, pool: WorkerPool, model_name: str) -> None:
        self._pool = pool
        self._model_name = model_name

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        """Yield all series of all workers."""
        workers = list(self._workers())
        usage = GaugeMetricFamily(f"{PREFIX}kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", labels=LABELS)
        for worker in workers:
            usage.add_metric((self._model_name, worker.name), cache_usage(worker.load))
        yield usage
        for name, (text, attribute) in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=LABELS)
            for worker in workers:
                gauge.add_metric((self._model_name, worker.name), getattr(worker.load, attribute))
            yield gauge
        for name, (text, attribute) in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=LABELS)
            for worker in workers:
                counter.add_metric((self._model_name, worker.name), getattr(worker.load, attribute))
            yield counter
        handovers = HandoverFamilies(LABELS)
        for worker in workers:
            handovers.add((self._model_name, worker.name), worker.load.completed_handovers)
        yield from handovers.collect()
        yield from self._tiers(workers)
        yield from self._accepted(workers)
        yield self._info(workers)
        yield self._cache_config(workers)
        yield self._transports(workers)

    def _workers(self) -> Iterator[ReportingWorker]:
        for connection in self._pool.connections:
            description = connection.description
            if description is None or connection.state is ConnectionState.CONNECTING:
                continue
            name = description.worker_id
            if self._pool.is_ambiguous(name):
                name = f"{name}@{connection.address}"
            role = ROLES[description.role]
            yield ReportingWorker(
                name,
                description.pool.incarnation,
                connection.address,
                role,
                connection.load.reported,
                description.block_size,
            )

    def _tiers(self, workers: Iterable[ReportingWorker]) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the series of the stores below the workers' KV pools."""
        kinds = ((GaugeMetricFamily, TIER_GAUGES), (CounterMetricFamily, TIER_COUNTERS))
        for kind, table in kinds:
            for name, (text, attribute) in table.items():
                family = kind(PREFIX + name, text, labels=(*LABELS, "tier"))
                for worker in workers:
                    for tier in worker.load.tiers:
                        family.add_metric((self._model_name, worker.name, tier.name), getattr(tier, attribute))
                yield family

    def _accepted(self, workers: Iterable[ReportingWorker]) -> Iterator[CounterMetricFamily]:
        """Yield the drafted tokens that were accepted: all of them, and by their place in the draft."""
        name, text = f"{PREFIX}spec_decode_num_accepted_tokens", "Drafted tokens that were right"
        total = CounterMetricFamily(name, f"{text}.", labels=LABELS)
        by_position = CounterMetricFamily(
            f"{name}_per_pos", f"{text}, by their place in the draft.", labels=(*LABELS, "position")
        )
        for worker in workers:
            labels = (self._model_name, worker.name)
            total.add_metric(labels, sum(worker.load.accepted_by_position))
            for position, count in enumerate(worker.load.accepted_by_position):
                by_position.add_metric((*labels, str(position)), count)
        yield from (total, by_position)

    def _info(self, workers: Iterable[ReportingWorker]) -> GaugeMetricFamily:
        labels = ("model_name", "worker", "role", "address")
        info = GaugeMetricFamily(f"{PREFIX}worker_info", "1 for each worker, with its role and address.", labels=labels)
        for worker in workers:
            info.add_metric((self._model_name, worker.name, worker.role.value, worker.address), 1)
        return info

    def _cache_config(self, workers: Iterable[ReportingWorker]) -> GaugeMetricFamily:
        labels = (*LABELS, "block_size", "num_gpu_blocks")
        info = GaugeMetricFamily(f"{PREFIX}cache_config_info", "1, with the sizes of the KV pool.", labels=labels)
        for worker in workers:
            info.add_metric((self._model_name, worker.name, str(worker.block_size), str(worker.load.num_blocks)), 1)
        return info

    def _transports(self, workers: Iterable[ReportingWorker]) -> GaugeMetricFamily:
        names = {worker.pool_incarnation: worker.name for worker in workers}
        info = GaugeMetricFamily(
            f"{PREFIX}kv_transport_info",
            "1 for the transport in use between a worker and a peer.",
            labels=("model_name", "worker", "peer", "transport", "reason"),
        )
        for worker in workers:
            for peer, text in worker.load.peer_transports.items():
                transport, _, reason = text.partition(" ")
                labels = (self._model_name, worker.name, names.get(peer, peer), transport.rstrip(":,"), reason)
                info.add_metric(labels, 1)
        return info
