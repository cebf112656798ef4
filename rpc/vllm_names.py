"""vLLM's names of metrics: which of Baton's series each one is, as data, and a collector that renames them.

The names, labels, units and buckets are those of vLLM 0.33 (vllm/v1/metrics/loggers.py and buckets.py). A name is left
out if Baton has nothing that means the same; docs/observability.md lists those, with the reasons.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from baton.settings.names import MetricsNames

BATON, VLLM = "baton:", "vllm:"
ROUTER_ENGINE = "router"  # value of the label `engine` in series that a router measures
RENAMED_LABELS = {"worker": "engine"}

TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
    *(640, 2560),
)
TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
ALL_BOUNDS = ()  # of histograms whose bounds are vLLM's already


@dataclass(frozen=True, slots=True)
class VllmSeries:
    """A series of vLLM, and the series of Baton that has its values. Names are without prefix and `_total`."""

    name: str
    source: str
    bounds: Sequence[float] = ALL_BOUNDS  # vLLM's buckets, of the finer ones that the source has
    constant: float | None = None  # in place of the values


OF_ENGINES = tuple(
    VllmSeries(name, name)
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "cache_config_info",
        "num_preemptions",
        "spec_decode_num_drafts",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
        "spec_decode_num_accepted_tokens_per_pos",
    )
)
OF_ROUTER = (
    *OF_ENGINES,
    VllmSeries("num_requests_waiting", "router_waiting"),
    # Dashboards list the engines that have this series; without it they would leave out the router's others.
    VllmSeries("num_requests_running", "router_inflight", constant=0),
    VllmSeries("lora_requests_info", "lora_requests_info"),
    VllmSeries("prompt_tokens", "prompt_tokens"),
    VllmSeries("prompt_tokens_cached", "prefix_cache_hits"),
    VllmSeries("generation_tokens", "generation_tokens"),
    VllmSeries("prefix_cache_queries", "prefix_cache_queries"),
    VllmSeries("prefix_cache_hits", "prefix_cache_hits"),
    VllmSeries("request_success", "request_success"),
    VllmSeries("request_prompt_tokens", "request_prompt_tokens"),
    VllmSeries("request_generation_tokens", "request_generation_tokens"),
    VllmSeries("request_max_num_generation_tokens", "request_generation_tokens"),
    VllmSeries("request_params_n", "request_params_n"),
    VllmSeries("request_params_max_tokens", "request_params_max_tokens"),
    VllmSeries("time_to_first_token_seconds", "time_to_first_token_seconds", TTFT_S),
    VllmSeries("inter_token_latency_seconds", "inter_token_latency_seconds", TOKEN_S),
    VllmSeries("request_time_per_output_token_seconds", "request_time_per_output_token_seconds", TOKEN_S),
    VllmSeries("e2e_request_latency_seconds", "e2e_request_latency_seconds", REQUEST_S),
    VllmSeries("request_queue_time_seconds", "request_dispatch_time_seconds", REQUEST_S),
    VllmSeries("request_prefill_time_seconds", "request_prefill_time_seconds", REQUEST_S),
    VllmSeries("request_decode_time_seconds", "request_decode_time_seconds", REQUEST_S),
    VllmSeries("request_inference_time_seconds", "request_inference_time_seconds", REQUEST_S),
)
OF_WORKER = (
    *OF_ENGINES,
    VllmSeries("generation_tokens", "generation_tokens"),
    VllmSeries("prefix_cache_queries", "prefix_cache_queries"),
    VllmSeries("prefix_cache_hits", "prefix_cache_hits"),
)


class NamedSeries(Collector):
    """Series of another collector with Baton's names, vLLM's, or both."""

    def __init__(self, series: Collector, names: MetricsNames, table: Sequence[VllmSeries]) -> None:
        """`table`: `OF_ROUTER` or `OF_WORKER`, by what `series` is the page of."""
        self._series = series
        self._names = names
        self._table = table

    def collect(self) -> Iterator[Metric]:
        """Yield the series."""
        families = {family.name: family for family in self._series.collect()}
        if self._names != "vllm":
            yield from families.values()
        if self._names != "baton":
            yield from _vllm_families(families, self._table)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: otherwise a registry would call `collect` when this is registered."""
        return iter(())


def _vllm_families(families: dict[str, Metric], table: Sequence[VllmSeries]) -> Iterable[Metric]:
    """Return the families that vLLM has; one with several sources has the samples of all."""
    found: dict[str, Metric] = {}
    for each in table:
        source = families.get(BATON + each.source)
        if source is None:
            continue
        name = VLLM + each.name
        family = found.setdefault(name, Metric(name, source.documentation, source.type))
        family.samples.extend(_renamed(each, source))
    return found.values()


def _renamed(series: VllmSeries, source: Metric) -> Iterator[Sample]:
    """Yield the samples of Baton's family as vLLM's."""
    bounds = {*map(float, series.bounds), float("inf")} if series.bounds else None
    for sample in source.samples:
        bound = sample.labels.get("le")
        if bound is not None and bounds is not None and float(bound) not in bounds:
            continue
        labels = {RENAMED_LABELS.get(label, label): value for label, value in sample.labels.items()}
        yield sample._replace(
            name=VLLM + series.name + sample.name.removeprefix(source.name),
            labels={"engine": ROUTER_ENGINE, **labels},
            value=sample.value if series.constant is None else series.constant,
        )
