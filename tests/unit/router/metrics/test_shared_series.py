"""The series of several processes on one page, and a process that does not respond."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from baton.router.metrics.histogram import LoopHistogram
from baton.router.metrics.page import MetricsPage, ProcessGroup
from baton.router.metrics.shared_series import pack_series, unpack_series

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


def registry_of(requests: int, generated: int | None) -> CollectorRegistry:
    """A process's series; `generated` is what a worker reported to it (None: it knows no worker)."""
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ["reason"], registry=registry).labels('a "stop"').inc(requests)
    Gauge("inflight", "In flight.", registry=registry).set_function(lambda: requests / 2)
    Histogram("seconds", "Seconds.", buckets=(1, 2), registry=registry).observe(1.5)
    tokens = Counter("tokens", "Tokens.", ["worker"], registry=registry)
    if generated is not None:
        tokens.labels("decode-0").inc(generated)
    return registry


def values(page: Collector) -> dict[tuple[str, ...], float]:
    """Return the value of each series by its name and the values of its labels."""
    families = list(text_string_to_metric_families(generate_latest(page).decode()))
    assert len({family.name for family in families}) == len(families), "a family stands there twice"
    return {(one.name, *sorted(one.labels.values())): one.value for family in families for one in family.samples}


async def test_the_page_has_every_process_and_each_worker_once(tmp_path: Path) -> None:
    groups = [ProcessGroup(tmp_path, number, 2, registry_of(number + 1, 10 + number)) for number in range(2)]
    async with groups[0], groups[1]:
        for asked, group in enumerate(groups):
            found = values(await group.page())
            for number in range(2):
                process = str(number)
                assert found["baton:router_process_up", process] == 1
                assert found["requests_total", process, 'a "stop"'] == number + 1
                assert found["inflight", process] == (number + 1) / 2
                assert found["seconds_bucket", process, "2.0"] == found["seconds_count", process] == 1
                assert found["seconds_sum", process] == 1.5
            assert found["tokens_total", "decode-0"] == 10 + asked


async def test_the_page_of_several_processes_is_openmetrics_for_clients_that_accept_it(tmp_path: Path) -> None:
    registries = [registry_of(number + 1, 10) for number in range(2)]
    groups = [ProcessGroup(tmp_path, number, 2, registry) for number, registry in enumerate(registries)]
    async with groups[0], groups[1]:
        page = await MetricsPage(registries[0], groups[0]).text(OPENMETRICS)
        assert page.media_type.startswith("application/openmetrics-text; version=1.0.0")
        families = {each.name: each for each in openmetrics.text_string_to_metric_families(page.content.decode())}
        assert {sample.labels["process"] for sample in families["seconds"].samples} == {"0", "1"}
        assert families["requests"].type == "counter"


async def test_the_page_of_several_processes_has_the_exemplars_of_each(tmp_path: Path) -> None:
    registries = [CollectorRegistry() for _ in range(2)]
    for number, registry in enumerate(registries):
        histogram = LoopHistogram("seconds", "Seconds.", {"model_name": "m"}, (1.0, 2.0), registry)
        histogram.observe(1.5, trace_id=f"trace-{number}")
        histogram.observe(0.5)
    groups = [ProcessGroup(tmp_path, number, 2, registry) for number, registry in enumerate(registries)]
    async with groups[0], groups[1]:
        page, plain = [await MetricsPage(registries[0], groups[0]).text(accept) for accept in (OPENMETRICS, "*/*")]
    assert b"trace_id" not in plain.content, "the plain format has no exemplars"
    [family] = [
        each for each in openmetrics.text_string_to_metric_families(page.content.decode()) if each.name == "seconds"
    ]
    found = {
        (sample.labels["process"], sample.labels["le"]): (sample.exemplar.labels, sample.exemplar.value)
        for sample in family.samples
        if sample.exemplar
    }
    assert found == {(str(number), "2.0"): ({"trace_id": f"trace-{number}"}, 1.5) for number in range(2)}


class CountingRegistry(CollectorRegistry):
    """A registry that counts how often its series are read."""

    num_reads = 0

    def collect(self) -> Iterable[Metric]:
        self.num_reads += 1
        return super().collect()


async def test_concurrent_requests_share_a_page() -> None:
    registry = CountingRegistry()
    page = MetricsPage(registry, None)
    texts = await asyncio.gather(*(page.text("") for _ in range(100)))
    assert registry.num_reads == 1
    assert len({id(each) for each in texts}) == 1


async def test_concurrent_processes_share_the_series_of_another_one(tmp_path: Path) -> None:
    registry = CountingRegistry()
    groups = [ProcessGroup(tmp_path, number, 9, registry_of(1, None)) for number in range(1, 9)]
    async with ProcessGroup(tmp_path, 0, 9, registry):
        await asyncio.gather(*(each.page() for each in groups))
        assert registry.num_reads < len(groups)


def test_unbounded_values_survive_the_transfer() -> None:
    registry = CollectorRegistry()
    Gauge("left", "Left.", registry=registry).set(float("inf"))
    [family] = unpack_series(pack_series(registry.collect()))
    assert [sample.value for sample in family.samples] == [float("inf")]


async def test_a_process_without_workers_hides_no_series_of_other_processes(tmp_path: Path) -> None:
    knowing = ProcessGroup(tmp_path, 0, 2, registry_of(1, 5))
    other = ProcessGroup(tmp_path, 1, 2, registry_of(1, None))
    async with knowing, other:
        assert values(await knowing.page())["tokens_total", "decode-0"] == 5
        assert values(await other.page())["requests_total", "0", 'a "stop"'] == 1


async def test_a_process_that_does_not_respond_is_down_until_it_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.router.process_socket.PEER_TIMEOUT_S", 0.05)
    group = ProcessGroup(tmp_path, 0, 3, registry_of(1, None))
    # One stands still, as if stopped: it listens and says nothing. Of the other only a dead life's socket is left.
    held: list[asyncio.StreamWriter] = []
    stopped = await asyncio.start_unix_server(lambda _, writer: held.append(writer), tmp_path / "router-1.sock")
    dead = await asyncio.start_unix_server(lambda _, writer: writer.close(), tmp_path / "router-2.sock")
    dead.close()
    await dead.wait_closed()
    assert (tmp_path / "router-2.sock").exists()
    async with group:
        found = values(await group.page())
        assert [found["baton:router_process_up", process] for process in "012"] == [1, 0, 0]
        assert ("inflight", "1") not in found
        async with ProcessGroup(tmp_path, 2, 3, registry_of(4, None)):
            assert values(await group.page())["requests_total", "2", 'a "stop"'] == 4
    for writer in held:
        writer.close()
        await writer.wait_closed()
    stopped.close()
    assert not (tmp_path / "router-0.sock").exists()


def test_truncated_series_are_an_error() -> None:
    packed = pack_series(registry_of(1, 1).collect())
    assert [each.name for each in unpack_series(packed)] == ["requests", "inflight", "seconds", "tokens"]
    with pytest.raises(ValueError, match="unexpected end of data"):
        unpack_series(packed[:-5])
