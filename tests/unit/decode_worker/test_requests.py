"""The requests of a decode worker over a simulated engine, and prefill workers that misbehave by script."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from baton.decode_worker.handover import Handover, HandoverLimits
from baton.decode_worker.requests import DecodeRequests
from baton.decode_worker.service import RouterSession
from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.errors import PeerRefused, TransferDeadline
from baton.protos import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Channels
from baton.simulation.engine.clock import LoopClock
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.request import SimulatedRequest
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import Tokens
from baton.simulation.workers.host import SimulatedHost
from baton.worker.base import NoStores
from baton.worker.drain import Drain
from baton.worker.reporting import WorkerCounters
from tests.unit.simulation.served import until

SPEC = WorkerSpec(block_size=4, num_blocks=101, max_num_seqs=8, max_num_batched_tokens=64, step_s=0.001)
PROMPT = list(range(40))  # 10 blocks
KEEP_ALIVE = worker_pb2.PrefillEvent()
ACCEPTED = worker_pb2.PrefillEvent(accepted=worker_pb2.PrefillAccepted(pools=[worker_pb2.KVPool()]))
FIRST_TOKEN = worker_pb2.PrefillEvent(first_token=worker_pb2.FirstToken(token_id=7))
LIMITS = HandoverLimits(read_s=30.0, progress_s=600.0)
NO_WAIT = HandoverLimits(read_s=30.0, progress_s=0.0)  # each event must be progress


def blocks(first_index: int, count: int) -> worker_pb2.PrefillEvent:
    """Return the announcement of blocks, with their checksums."""
    return worker_pb2.PrefillEvent(
        blocks=worker_pb2.BlocksReady(first_index=first_index, block_ids=range(count)),
        checksums=worker_pb2.BlockChecksums(first_index=first_index, checksums=[0] * count),
    )


def prompt_logprobs(count: int) -> worker_pb2.PrefillEvent:
    return worker_pb2.PrefillEvent(prompt_logprobs=[common_pb2.PositionLogprobs()] * count)


class ScriptedPrefill(worker_pb2_grpc.PrefillServicer):
    """A prefill worker that sends `events` in every call, and then only keep-alives if `goes_on`."""

    def __init__(self, events: list[worker_pb2.PrefillEvent], goes_on: bool = False) -> None:
        self._events = events
        self._goes_on = goes_on

    async def Prefill(  # noqa: N802
        self, request: worker_pb2.PrefillRequest, context: object
    ) -> AsyncIterator[worker_pb2.PrefillEvent]:
        for event in self._events:
            yield event
        while self._goes_on:
            yield KEEP_ALIVE
            await asyncio.sleep(0.001)
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(prefill: ScriptedPrefill) -> AsyncIterator[tuple[Channels, str]]:
    """Serve the script; yield channels and its address."""
    server, channels = grpc.aio.server(), Channels()
    worker_pb2_grpc.add_PrefillServicer_to_server(prefill, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield channels, f"127.0.0.1:{port}"
    finally:
        await channels.close()
        await server.stop(None)


class Ignored:
    """A listener that ignores tokens and logprobs."""

    def on_first_token(self, first: worker_pb2.FirstToken) -> None: ...

    def on_prompt_logprobs(self, positions: object) -> None: ...


def new_host() -> tuple[EngineCore, SimulatedHost]:
    core = EngineCore(SPEC, LoopClock(), Tokens(SPEC))
    return core, SimulatedHost(core, worker_pb2.KVPool(fingerprint="simulated"))


async def hand_over(prefill: ScriptedPrefill, limits: HandoverLimits) -> Received:
    """Return what a handover of the prompt received."""
    core, host = new_host()
    received: list[Request] = []
    core.listen(lambda step: received.extend(step.receiving))
    simulated = SimulatedRequest(request_id="a", token_ids=PROMPT, num_output_tokens=5)
    core.add(simulated.to_engine(receives_kv=True))
    await until(lambda: bool(received))
    handover = Handover(host, received[0], Ignored(), limits, Received(0))
    async with asyncio.timeout(20), serving(prefill) as (channels, address):
        await handover.run(channels, address, worker_pb2.PrefillRequest())
    return handover.received


@pytest.mark.parametrize(
    "events",
    [
        [],
        [ACCEPTED],
        [ACCEPTED, blocks(0, 10)],
        [ACCEPTED, FIRST_TOKEN],
        [ACCEPTED, *[blocks(0, 1)] * 9],
        [ACCEPTED, *[worker_pb2.PrefillEvent(blocks=worker_pb2.BlocksReady())] * 9],
    ],
)
async def test_a_prefill_worker_that_sends_only_keep_alives_is_given_up(events: list[worker_pb2.PrefillEvent]) -> None:
    with pytest.raises(TransferDeadline, match="made no progress for 0 s"):
        await hand_over(ScriptedPrefill(events, goes_on=True), NO_WAIT)


async def test_every_piece_of_a_handover_is_progress() -> None:
    pieces = [blocks(index, 1) for index in range(10)]
    received = await hand_over(ScriptedPrefill([ACCEPTED, *pieces, FIRST_TOKEN]), NO_WAIT)
    assert received.num_tokens == len(PROMPT)
    assert received.sampled is not None


async def test_keep_alives_of_a_busy_prefill_worker_are_waited_for() -> None:
    idle = [KEEP_ALIVE] * 500
    received = await hand_over(ScriptedPrefill([*idle, ACCEPTED, *idle, blocks(0, 10), *idle, FIRST_TOKEN]), LIMITS)
    assert received.num_tokens == len(PROMPT)


async def test_prompt_logprobs_that_were_not_asked_for_are_refused() -> None:
    with pytest.raises(PeerRefused, match="more than 0 prompt logprobs"):
        await hand_over(ScriptedPrefill([ACCEPTED, prompt_logprobs(1)]), LIMITS)


def command(peer: str) -> worker_pb2.GenerateCommand:
    return worker_pb2.GenerateCommand(
        request_id="a",
        token_ids=PROMPT,
        num_prompt_tokens=len(PROMPT),
        sampling=common_pb2.SamplingParams(max_tokens=2, temperature=0, ignore_eos=True),
        prefill=worker_pb2.PeerWorker(worker_id="prefill-0", address=peer),
    )


async def test_a_reused_id_leaves_no_block_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router may reuse the id of an aborted request while a transfer may still write into that request's blocks."""
    core, host = new_host()
    is_quiet = asyncio.Event()  # no transfer can write any more

    async def clear(*_: object) -> None:
        await is_quiet.wait()

    monkeypatch.setattr(host.ranks, "clear", clear)

    def num_held() -> int:
        core.scheduler.check_integrity()
        return core.blocks.num_usable - core.blocks.cache.pool.num_free

    async with serving(ScriptedPrefill([KEEP_ALIVE])) as (channels, address):
        requests = DecodeRequests(host, channels, WorkerCounters(), Drain(), "decode-0", LIMITS)
        session = RouterSession("1")
        for number in range(1, 5):
            requests.submit(command(address), session)
            await until(lambda: num_held() == 10 * number)  # noqa: B023
            requests.abort("a", session)
        is_quiet.set()
        await until(lambda: num_held() == 0)
        requests.submit(command(address), session)
        await until(lambda: num_held() == 10)
        await requests.close()
        await until(lambda: num_held() == 0)


class SlowStores(NoStores):
    """Stores with lookups that go on until `found` is set, and then fail."""

    def __init__(self) -> None:
        self.found = asyncio.Event()
        self.num_lookups = 0

    async def find(self, request: Request) -> None:
        self.num_lookups += 1
        await self.found.wait()
        raise KeyError("a bug")


@pytest.mark.parametrize("end", ["abort", "session", "hand off", "close", "none"])
async def test_a_request_that_ends_during_its_lookup_of_stored_kv_never_enters_the_engine(end: str) -> None:
    """It is reported as taken all the same; without an end, it is computed after a lookup that failed."""
    core, host = new_host()
    counters, drain, stores, session = WorkerCounters(), Drain(), SlowStores(), RouterSession("1", "router-1")
    requests = DecodeRequests(host, Channels(), counters, drain, "decode-0", LIMITS, stores=stores)
    simulated = SimulatedRequest(request_id="a", token_ids=PROMPT, num_output_tokens=5).to_engine()
    with counters.taken.watched("router-1") as taken:
        sampling = common_pb2.SamplingParams(max_tokens=simulated.sampling.max_tokens)
        requests.submit(
            worker_pb2.GenerateCommand(
                request_id="a", number=7, token_ids=PROMPT, num_prompt_tokens=len(PROMPT), sampling=sampling
            ),
            session,
        )
        await until(lambda: stores.num_lookups == 1)
        assert (taken, drain.num_requests) == ([], 1)
        if end == "abort":
            requests.abort("a", session)
        elif end == "session":
            requests.abort_all(session)
        elif end == "hand off":
            handing_off = asyncio.create_task(drain.run(0.0))
            await until(lambda: drain.num_requests == 0)
            requests.abort("a", session)  # the router releases it
            await handing_off
        elif end == "close":
            await requests.close()
        stores.found.set()
        await until(lambda: taken == [7])
        await until(lambda: drain.num_requests == 0)
        stats = await host.stats()
        assert (stats.num_generated_tokens > 0) is (end == "none")
        core.scheduler.check_integrity()
    await requests.close()
