"""A worker's Prometheus metrics: vLLM's names, with the prefix `baton:`."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from wsgiref.simple_server import WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from baton.engine.grammar.figures import GrammarCounters
from baton.engine.kv.prefix_pins import PinFigures
from baton.engine.offload.counters import OffloadCounters
from baton.engine.outputs import EngineStats, ExpertFigures
from baton.engine.speculation.figures import SpeculationCounters
from baton.kvtransfer.base import PeerId
from baton.protos.worker_pb2 import TransportHandovers
from baton.rpc.handover_times import HandoverFamilies
from baton.rpc.metrics_format import plain_accept
from baton.worker.engine_host import EngineHost
from baton.worker.reporting import TierCounters, WorkerCounters
from baton.worker.saved_prefill import POOL, SavedPrefill

SCRAPE_TIMEOUT_S = 5.0
TIER_COUNTERS = {
    "fetched_blocks": "KV blocks fetched from a store.",
    "fetched_bytes": "Bytes of KV fetched from a store.",
    "fetch_seconds": "Seconds of fetching KV from a store.",
    "slow_fetches": "Fetches from a store that ended early, because computing the rest was faster.",
    "saved_blocks": "KV blocks written to a store.",
    "saved_bytes": "Bytes of KV written to a store.",
    "failures": "Failed lookups, reads and writes of KV in a store.",
}
TIER_GAUGES = {
    "num_blocks": "KV blocks that a store holds; 0 if not known, as for servers.",
    "num_bytes": "Bytes of KV that a store holds; 0 if not known.",
    "capacity_bytes": "Size limit of a store; 0 if it has its own.",
}
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
FamilyT = TypeVar("FamilyT", CounterMetricFamily, GaugeMetricFamily)


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """A worker's figures at one moment."""

    stats: EngineStats
    counters: WorkerCounters
    transports: dict[PeerId, str]
    experts: ExpertFigures | None  # None outside of a group
    is_short_of_ranks: bool
    saved_s: Mapping[str, float]  # seconds of prefill, by tier
    block_bytes: int
    block_size: int
    handovers: Sequence[TransportHandovers] = ()


class WorkerMetrics(Collector):
    """Collector of a worker's metrics; each scrape reads them on the event loop, which owns them."""

    def __init__(self, host: EngineHost, counters: WorkerCounters, worker_id: str, model: str) -> None:
        self._host = host
        self._counters = counters
        self._labels = {"worker": worker_id, "model_name": model}
        self._loop = asyncio.get_running_loop()
        self._saved_prefill = SavedPrefill()

    async def _snapshot(self) -> WorkerSnapshot:
        stats = await self._host.stats()
        choices = self._host.ranks.choices
        transports = {peer: choice.transport for peer, choice in choices.items()}
        experts = await self._host.expert_figures()
        block_size = self._host.config.block_size
        found = {name: tier.fetched_blocks * block_size for name, tier in self._counters.tiers.items()}
        saved_s = self._saved_prefill.note({POOL: stats.num_cached_tokens, **found}, stats.prefill_tokens_per_s)
        is_short = self._host.is_short_of_ranks
        return WorkerSnapshot(
            stats,
            replace(self._counters),
            transports,
            experts,
            is_short,
            saved_s,
            self._host.block_bytes,
            block_size,
            self._counters.handover_times.to_proto(),
        )

    def collect(self) -> Iterator[Family]:
        """Yield all metrics; called on a thread of the HTTP server."""
        snapshot = asyncio.run_coroutine_threadsafe(self._snapshot(), self._loop).result(SCRAPE_TIMEOUT_S)
        stats, counters = snapshot.stats, snapshot.counters
        usage = 1 - stats.num_free_blocks / stats.num_blocks
        yield self._gauge("num_requests_running", "Requests in the batch.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Requests admitted and not in the batch.", stats.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", usage)
        yield self._cache_config(snapshot.block_size, stats.num_blocks)
        yield self._gauge("step_seconds", "Seconds per step, recent average.", stats.step_s)
        yield self._gauge("prefill_tokens_per_second", "Measured rate of prompt tokens.", stats.prefill_tokens_per_s)
        yield self._gauge(
            "decode_step_seconds", "Measured seconds of a decode step with one sequence.", stats.decode_step_s
        )
        yield self._gauge(
            "decode_sequence_seconds",
            "Measured seconds that each further sequence adds to a decode step.",
            stats.decode_sequence_s,
        )
        yield self._gauge("read_bytes_per_second", "Measured rate of KV reads from peers.", counters.reads.bytes_per_s)
        yield self._gauge(
            "remembered_requests", "Finished requests whose output can still be resumed.", counters.num_remembered
        )
        yield self._counter("num_preemptions", "Requests preempted.", stats.num_preemptions)
        yield self._counter("generation_tokens", "Tokens generated.", stats.num_generated_tokens)
        yield self._counter("prompt_tokens", "Prompt tokens computed.", stats.num_prefilled_tokens)
        yield self._counter("prefix_cache_queries", "Tokens looked up in the cache.", stats.num_looked_up_tokens)
        yield self._counter("prefix_cache_hits", "Tokens found in the cache.", stats.num_cached_tokens)
        yield from self._of_grammars(stats.grammars)
        yield from self._of_drafts(stats.speculation)
        yield from self._of_offload(stats.offload)
        yield self._counter("handovers", "Handovers received.", counters.handovers)
        yield self._counter("handover_bytes", "Bytes received by handovers.", counters.handover_bytes)
        yield self._counter("handover_failures", "Handovers that failed.", counters.handover_failures)
        yield self._counter("checksum_failures", "Transfers that failed a checksum.", counters.checksum_failures)
        yield from self._of_tiers(counters.tiers)
        yield from self._of_pins(stats.pins, snapshot.block_bytes)
        yield self._saved(snapshot.saved_s)
        handovers = HandoverFamilies(self._labels)
        handovers.add(tuple(self._labels.values()), snapshot.handovers)
        yield from handovers.collect()
        transports = GaugeMetricFamily(
            "baton:kv_transport_info", "Transport in use for each peer.", labels=[*self._labels, "peer", "transport"]
        )
        for peer, transport in snapshot.transports.items():
            transports.add_metric([*self._labels.values(), peer, transport], 1)
        yield transports
        if snapshot.experts is not None:
            yield from self._of_experts(snapshot.experts, snapshot.is_short_of_ranks)

    def _cache_config(self, block_size: int, num_blocks: int) -> Family:
        """Return the metric whose labels are the sizes of the KV pool."""
        labels = {**self._labels, "block_size": str(block_size), "num_gpu_blocks": str(num_blocks)}
        info = GaugeMetricFamily("baton:cache_config_info", "1, with the sizes of the KV pool.", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        return info

    def _of_grammars(self, grammars: GrammarCounters) -> Iterator[Family]:
        """Yield the metrics of structured output."""
        yield self._counter("grammar_compiles", "Grammars compiled.", grammars.num_compiles)
        yield self._counter("grammar_compile_seconds", "Seconds of compiling grammars.", grammars.compile_s)
        yield self._counter(
            "grammar_cache_hits", "Requests whose grammar was compiled or being compiled.", grammars.num_cache_hits
        )
        yield self._counter("grammar_masks", "Token masks filled.", grammars.num_masks)
        yield self._counter("grammar_mask_seconds", "CPU seconds of filling token masks.", grammars.mask_s)
        text = "Output tokens that grammars forced, appended without a step each."
        yield self._counter("grammar_forced_tokens", text, grammars.num_forced)
        text = "Token masks that were not filled in time, so that their requests missed a step."
        yield self._counter("grammar_late_masks", text, grammars.num_late_masks)

    def _of_tiers(self, tiers: Mapping[str, TierCounters]) -> Iterator[Family]:
        """Yield the metrics of the stores below the pool."""
        for name, text in TIER_COUNTERS.items():
            family = CounterMetricFamily(f"baton:kv_tier_{name}", text, labels=[*self._labels, "tier"])
            for tier, counters in tiers.items():
                family.add_metric([*self._labels.values(), tier], getattr(counters, name))
            yield family
        for name, text in TIER_GAUGES.items():
            gauge = GaugeMetricFamily(f"baton:kv_tier_{name}", text, labels=[*self._labels, "tier"])
            for tier, counters in tiers.items():
                gauge.add_metric([*self._labels.values(), tier], getattr(counters, name))
            yield gauge

    def _of_pins(self, pins: PinFigures, block_bytes: int) -> Iterator[Family]:
        """Yield the metrics of pinned prefixes."""
        yield self._gauge("kv_pins", "Pinned prefixes.", pins.num_pins)
        yield self._gauge("kv_pinned_blocks", "KV blocks that pinned prefixes hold.", pins.num_blocks)
        num_bytes = pins.num_blocks * block_bytes
        yield self._gauge("kv_pinned_bytes", "Bytes of KV that pinned prefixes hold.", num_bytes)
        yield self._counter("kv_dropped_pins", "Pins dropped because a request needed their blocks.", pins.num_dropped)

    def _saved(self, saved_s: Mapping[str, float]) -> Family:
        """Return the metric of saved prefill."""
        text = "Estimated seconds of prefill that were saved by KV in the KV cache and in stores."
        family = CounterMetricFamily("baton:kv_saved_prefill_seconds", text, labels=[*self._labels, "tier"])
        for tier, seconds in saved_s.items():
            family.add_metric([*self._labels.values(), tier], seconds)
        return family

    def _of_drafts(self, drafts: SpeculationCounters) -> Iterator[Family]:
        """Yield the metrics of speculative decoding."""
        yield self._counter("spec_decode_num_drafts", "Drafts verified.", drafts.num_drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Drafted tokens verified.", drafts.num_draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", "Drafted tokens accepted.", drafts.num_accepted_tokens)
        yield self._counter("spec_decode_drafting_seconds", "Seconds of the draft model or head.", drafts.drafting_s)
        text = "Drafted tokens accepted, by their place in the draft."
        positions = CounterMetricFamily(
            "baton:spec_decode_num_accepted_tokens_per_pos", text, labels=[*self._labels, "position"]
        )
        for position, count in enumerate(drafts.accepted_by_position):
            positions.add_metric([*self._labels.values(), str(position)], count)
        yield positions

    def _of_offload(self, offload: OffloadCounters) -> Iterator[Family]:
        """Yield the metrics of weights offload."""
        read = "Bytes of weights that steps read from disk, or copied to a GPU."
        yield self._counter("weights_offload_read_bytes", read, offload.num_read_bytes)
        waited = "Seconds that steps waited for weights from disk."
        yield self._counter("weights_offload_wait_seconds", waited, offload.waited_s)
        hits = "Experts that a layer's step needed and found in memory."
        yield self._counter("weights_offload_hits", hits, offload.num_expert_hits)
        misses = "Experts that a layer's step needed and read from disk."
        yield self._counter("weights_offload_misses", misses, offload.num_expert_misses)

    def _of_experts(self, experts: ExpertFigures, is_short: bool) -> Iterator[Family]:
        """Yield the metrics of an expert-parallel rank."""
        yield self._gauge("expert_group_short", "1 while the group has too few ranks and computes nothing.", is_short)
        yield self._gauge(
            "expert_group_epoch", "Epoch of the group; each change of its ranks begins a new one.", experts.epoch
        )
        yield self._gauge("expert_group_ranks", "Ranks of the group.", experts.num_ranks)
        text = "Tokens that this rank's experts computed for all ranks; a token counts once for each expert."
        yield self._by_layer(CounterMetricFamily, "expert_tokens", text, experts.rows)
        text = "Share of the most used expert among those that this rank's tokens were routed to, since its start."
        yield self._by_layer(GaugeMetricFamily, "expert_busiest_share", text, experts.busiest_shares)
        text = "Tokens of the busiest rank divided by the mean over ranks, at the last expert rebalancing."
        yield self._by_layer(GaugeMetricFamily, "expert_imbalance", text, experts.imbalances)

    def _by_layer(self, family: type[FamilyT], name: str, text: str, values: Sequence[float]) -> FamilyT:
        """Return a family with one series per MoE layer; one per expert would be too many."""
        layers = family(f"baton:{name}", text, labels=[*self._labels, "layer"])
        for layer, value in enumerate(values):
            layers.add_metric([*self._labels.values(), str(layer)], value)
        return layers

    def describe(self) -> Iterator[Family]:
        """Yield nothing: otherwise the registry calls `collect`, which waits for the event loop that registers it."""
        return iter(())

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"baton:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"baton:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family


def serve_metrics(metrics: Collector, host: str, port: int) -> WSGIServer:
    """Serve /metrics over HTTP until the process ends."""
    registry = CollectorRegistry()
    registry.register(metrics)
    server, _ = start_http_server(port, host, registry)
    page: WSGIApplication = make_wsgi_app(registry)

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return page({**environ, "HTTP_ACCEPT": plain_accept(environ.get("HTTP_ACCEPT", ""))}, start_response)

    server.set_app(serve)
    return server
