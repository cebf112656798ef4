"""Series of several collectors on one page."""

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from baton.router.metrics.histogram import LoopHistogram
from baton.router.metrics.router_series import RouterSeries


def registry_of(model: str, count: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ["model_name"], registry=registry).labels(model).inc(count)
    LoopHistogram("seconds", "Seconds.", {"model_name": model}, (1,), registry).observe(count)
    return registry


def test_a_family_appears_once_with_the_samples_of_all() -> None:
    shared = CollectorRegistry()
    Gauge("bytes", "Bytes.", registry=shared).set(7)
    series = RouterSeries([registry_of("a", 1), registry_of("b", 2), shared])
    for _ in range(2):  # collecting changes nothing
        lines = generate_latest(series).decode().splitlines()
        assert lines.count("# TYPE requests_total counter") == lines.count("# TYPE seconds histogram") == 1
        for line in (
            'requests_total{model_name="a"} 1.0',
            'requests_total{model_name="b"} 2.0',
            'seconds_bucket{le="1.0",model_name="a"} 1.0',
            'seconds_bucket{le="1.0",model_name="b"} 0.0',
            "bytes 7.0",
        ):
            assert lines.count(line) == 1
