"""Open and closed loops against a real socket, and the times that they record."""

import asyncio
import time
from collections.abc import Sequence

from baton.loadtool.arrivals import Arrivals, MaxConcurrency, RequestRate
from baton.loadtool.client import HttpClient
from baton.loadtool.dispatch import LoadRun, run_load
from baton.loadtool.plan import Limits, PlannedRequest
from baton.loadtool.record import RequestRecord
from baton.loadtool.summary import summarise
from baton.loadtool.target import Target
from tests.unit.loadtool.scripted_server import ReceivedRequest, Script, ScriptedServer, scripted_server, stream_tokens

NO_LIMITS = Limits()


class Counting:
    """A watcher that counts requests."""

    def __init__(self) -> None:
        self.num_inflight = self.most_inflight = self.num_ended = 0

    def sent(self) -> None:
        self.num_inflight += 1
        self.most_inflight = max(self.most_inflight, self.num_inflight)

    def ended(self, record: RequestRecord) -> None:
        self.num_inflight -= 1
        self.num_ended += 1


def planned(*due_times_s: float | None) -> list[PlannedRequest]:
    payload = Target(base_url="http://127.0.0.1:1", model="m").payload(b"{}")
    return [PlannedRequest(payload, 4, 3, due_s) for due_s in due_times_s]


async def load(
    server: ScriptedServer,
    requests: Sequence[PlannedRequest],
    arrivals: Arrivals,
    watcher: Counting | None = None,
    limits: Limits = NO_LIMITS,
    timeout_s: float = 30.0,
) -> LoadRun:
    client = HttpClient("127.0.0.1", server.port, None, timeout_s)
    try:
        return await run_load(client, requests, arrivals, limits, watcher or Counting())
    finally:
        client.close()


def tokens(*gaps_s: float) -> Script:
    async def script(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await stream_tokens(writer, gaps_s)

    return script


async def test_an_open_loop_does_not_wait_for_responses() -> None:
    due_times = [0.05 * number for number in range(1, 9)]
    async with scripted_server(tokens(1.0, 0.0, 0.1)) as server:  # no response ends before all requests were sent
        watcher = Counting()
        run = await load(server, planned(*due_times), RequestRate(20.0), watcher)
    sent = sorted(record.sent_s for record in run.records)
    assert sent[-1] < 1.0
    assert all(sent_s >= due_s - 0.002 for sent_s, due_s in zip(sent, due_times, strict=True))
    assert watcher.most_inflight == len(due_times)
    gaps = [request.at_s - server.requests[0].at_s for request in server.requests]
    assert all(gap >= sent_s - sent[0] - 0.1 for gap, sent_s in zip(gaps, sent, strict=True))
    assert gaps[-1] < 1.0
    for record in run.records:
        assert record.failure is None
        assert record.ttft_s > 0.99
        assert record.e2e_s - record.ttft_s > 0.09
        assert record.lag_s == record.sent_s - (record.due_s or 0.0)
        assert (record.num_output_tokens, record.num_prompt_tokens, record.status) == (3, 4, 200)


async def test_a_late_client_reports_its_lag() -> None:
    async def script(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 1:
            time.sleep(0.3)  # noqa: ASYNC251  # the client's own loop stands still, as on a machine that is too slow
        await stream_tokens(writer, (0.0,))

    async with scripted_server(script) as server:
        run = await load(server, planned(0.0, 0.1, 0.2), RequestRate(10.0))
    found = summarise(run, None)
    assert found.lag_ms is not None
    assert found.lag_ms.max > 150
    assert any("were sent late" in warning for warning in found.warnings)


async def test_a_closed_loop_has_exactly_its_number_of_clients() -> None:
    watcher = Counting()
    async with scripted_server(tokens(0.01, 0.01)) as server:
        run = await load(server, planned(*[None] * 20), MaxConcurrency(3), watcher)
    assert (watcher.most_inflight, watcher.num_ended, len(run.records)) == (3, 20, 20)
    assert server.num_connections == 3
    assert summarise(run, None).max_concurrency == 3
    assert run.is_whole


async def test_a_closed_loop_ends_after_its_duration() -> None:
    async with scripted_server(tokens(0.05)) as server:
        run = await load(server, planned(*[None] * 1000), MaxConcurrency(2), limits=Limits(duration_s=0.3))
    assert 2 <= len(run.records) <= 16
    assert all(record.failure is None for record in run.records)
    assert 0.3 <= run.elapsed_s < 10.0


async def test_failures_of_every_kind_are_recorded() -> None:
    async def script(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        match len(server.requests) % 4:
            case 0:
                await stream_tokens(writer, (0.0, 0.0))
            case 1:
                body = b'{"error": {"message": "too many"}}'
                writer.write(b"HTTP/1.1 429 No\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            case 2:
                writer.close()
            case _:
                await asyncio.sleep(60)

    async with scripted_server(script) as server:
        run = await load(server, planned(*[None] * 8), MaxConcurrency(1), timeout_s=0.2)
    kinds = [record.failure.kind if record.failure is not None else None for record in run.records]
    assert kinds == ["status 429", "connection", "timed out", None] * 2
    assert summarise(run, None).num_rejected == 2


async def test_an_interrupted_run_keeps_the_requests_that_have_ended() -> None:
    async def script(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) > 4:
            enough.set()
            await asyncio.sleep(60)
        await stream_tokens(writer, (0.0,))

    enough = asyncio.Event()
    async with scripted_server(script) as server:
        running = asyncio.ensure_future(load(server, planned(*[None] * 50), MaxConcurrency(1)))
        await enough.wait()
        running.cancel()
        run = await running
    assert (len(run.records), run.is_whole) == (4, False)
