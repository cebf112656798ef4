"""The event loop's counter against prometheus_client's."""

from prometheus_client import CollectorRegistry, Counter, generate_latest

from baton.router.metrics.counter import LoopCounter


def test_its_series_are_those_of_prometheus_client() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = LoopCounter("a:things", "Things.", {"model_name": "tiny"}, ours)
    reference = Counter("a:things", "Things.", ["model_name"], registry=theirs).labels("tiny")
    for num in (0, 1, 41):
        fast.inc(num)
        reference.inc(num)
        lines = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
        assert generate_latest(ours).splitlines() == lines
    fast.inc()
    assert ours.get_sample_value("a:things_total", {"model_name": "tiny"}) == 43
