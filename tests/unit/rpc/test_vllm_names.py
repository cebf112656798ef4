"""Baton's series under vLLM's names."""

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from baton.router.metrics import metrics as router_metrics
from baton.router.metrics.metrics import RouterMetrics
from baton.rpc.vllm_names import OF_ROUTER, OF_WORKER, REQUEST_S, TOKEN_S, TTFT_S, NamedSeries
from baton.settings.names import MetricsNames


class Families(Collector):
    """Collector of given families."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> tuple[Metric, ...]:
        return self._families


def gauge(name: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"baton:{name}", "text", labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def samples(*families: Metric, names: MetricsNames = "vllm") -> dict[tuple[str, str, str], float]:
    found = NamedSeries(Families(*families), names, OF_ROUTER).collect()
    return {
        (sample.name, sample.labels.get("engine", ""), sample.labels.get("le", "")): sample.value
        for family in found
        for sample in family.samples
    }


def test_workers_are_engines_and_the_router_is_one_whose_queue_counts_as_waiting() -> None:
    waiting = gauge("num_requests_waiting", 3, model_name="m", worker="decode-0")
    found = samples(waiting, gauge("router_waiting", 5, model_name="m"), gauge("router_inflight", 9, model_name="m"))
    assert found == {
        ("vllm:num_requests_waiting", "decode-0", ""): 3,
        ("vllm:num_requests_waiting", "router", ""): 5,
        ("vllm:num_requests_running", "router", ""): 0,
    }


def test_names_select_the_series_of_a_page() -> None:
    usage = gauge("kv_cache_usage_perc", 0.5, model_name="m", worker="decode-0"), gauge("router_capacity", 1)
    assert {name for name, *_ in samples(*usage, names="vllm")} == {"vllm:kv_cache_usage_perc"}
    assert {name for name, *_ in samples(*usage, names="baton")} == {
        "baton:kv_cache_usage_perc",
        "baton:router_capacity",
    }
    assert len(samples(*usage, names="both")) == 3


def test_a_histogram_has_exactly_the_buckets_of_vllm_and_keeps_its_exemplars() -> None:
    family = HistogramMetricFamily("baton:e2e_request_latency_seconds", "text", labels=["model_name"])
    buckets = [("0.1", 1), ("0.3", 2, Exemplar({"trace_id": "f"}, 0.2, 1.0)), ("1920.0", 3), ("+Inf", 4)]
    family.add_metric(["m"], buckets, 9.5)  # type: ignore[arg-type]
    name = "vllm:e2e_request_latency_seconds"
    assert samples(family) == {
        (f"{name}_bucket", "router", "0.3"): 2,
        (f"{name}_bucket", "router", "1920.0"): 3,
        (f"{name}_bucket", "router", "+Inf"): 4,
        (f"{name}_count", "router", ""): 4,
        (f"{name}_sum", "router", ""): 9.5,
    }
    page = generate_latest(NamedSeries(Families(family), "vllm", OF_ROUTER)).decode()  # type: ignore[no-untyped-call]
    assert '# {trace_id="f"} 0.2' in page


def test_the_router_counts_in_every_bucket_of_vllm() -> None:
    ours = {
        TTFT_S: router_metrics.TTFT_BUCKETS_S,
        TOKEN_S: router_metrics.TOKEN_BUCKETS_S,
        REQUEST_S: router_metrics.REQUEST_BUCKETS_S,
    }
    for bounds, buckets in ours.items():
        assert set(bounds) <= set(buckets)
        assert list(buckets) == sorted(buckets)


def test_every_source_of_the_router_that_a_model_has_exists() -> None:
    """Series of workers and of the queue come from other collectors; the reference has them all."""
    families = list(RouterMetrics("m", 60).registry.collect())
    found = {family.name for family in NamedSeries(Families(*families), "vllm", OF_ROUTER).collect()}
    assert found >= {
        "vllm:time_to_first_token_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:prompt_tokens",
        "vllm:request_success",
    }


def test_no_series_has_two_sources_on_a_worker() -> None:
    names = [series.name for series in OF_WORKER]
    assert len(names) == len(set(names))
