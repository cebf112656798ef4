"""The event loop's histogram against prometheus_client's."""

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from baton.router.metrics.histogram import LoopHistogram

BOUNDS = (0.125, 0.5, 1, 10)


def test_its_series_are_those_of_prometheus_client() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = LoopHistogram("a:seconds", "Seconds.", {"model_name": "tiny"}, BOUNDS, ours)
    reference = Histogram("a:seconds", "Seconds.", ["model_name"], buckets=BOUNDS, registry=theirs).labels("tiny")
    values = random.Random(0)
    for value in (*BOUNDS, 0.0, 11.0, *(values.choice((0.0625, 0.25, 0.75, 3.0, 20.0)) for _ in range(100))):
        fast.observe(value, 2)
        for _ in range(2):
            reference.observe(value)
    lines = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == lines
