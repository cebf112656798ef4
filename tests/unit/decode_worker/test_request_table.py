"""A decode worker's requests: each ends once, and each command's number is reported once, in every case."""

import asyncio
import itertools

from baton.decode_worker.decode_request import DecodeRequest
from baton.decode_worker.remembered import RememberedOutputs
from baton.decode_worker.request_table import RequestTable
from baton.decode_worker.service import RouterSession
from baton.decode_worker.shared_images import SharedImages
from baton.engine.errors import QueueFull
from baton.engine.kv.origin import KVOrigin
from baton.engine.outputs import RequestOutput, SampledToken, StepOutput
from baton.engine.request import FinishReason, RequestId
from baton.protos import common_pb2, worker_pb2
from baton.rpc.status import Conflict, error_from_code
from baton.rpc.tracing.context import TraceContext
from baton.worker.drain import Drain
from baton.worker.reporting import WorkerCounters
from baton.worker.request_trace import NO_TRACING

ROUTER = "router-1"


class Table:
    """A table, its counters, and the deltas of a session."""

    def __init__(self) -> None:
        self.counters, self.drain = WorkerCounters(), Drain()
        self.aborted: list[RequestId] = []  # by the table, in the engine
        self.remembered = RememberedOutputs(self.counters, 10.0)
        self.table = RequestTable(self.counters, self.drain, self.aborted.append, self.remembered)
        self.session = RouterSession("1", ROUTER)
        self._numbers = itertools.count(1)

    def entry(
        self, name: str, number: int, session: RouterSession | None = None, resume_key: bytes = b""
    ) -> DecodeRequest:
        command = worker_pb2.GenerateCommand(
            request_id=name, token_ids=[1, 5], num_prompt_tokens=1, number=number, resume_key=resume_key
        )
        number, origin = next(self._numbers), KVOrigin("bf16", "f")
        return DecodeRequest.of(command, session or self.session, "decode-0", number, origin, SharedImages())

    async def events(self) -> list[worker_pb2.RequestDelta]:
        self.session.close()
        return [delta async for message in self.session.messages() for delta in message.deltas]


def finished(entry: DecodeRequest) -> StepOutput:
    return stepped(entry, FinishReason.LENGTH)


def stepped(entry: DecodeRequest, reason: FinishReason | None = None) -> StepOutput:
    return StepOutput([RequestOutput(entry.request.request_id, 1, SampledToken(7), finish_reason=reason)])


async def test_a_repeated_command_is_ignored() -> None:
    made = Table()
    assert made.table.enter(made.entry("a", 1))
    assert not made.table.enter(made.entry("a", 1))
    assert made.drain.num_requests == 1
    assert await made.events() == []


async def test_a_command_refused_for_draining_counts_as_taken() -> None:
    made = Table()
    made.drain.begin()
    with made.counters.taken.watched(ROUTER) as numbers:
        assert not made.table.enter(refused := made.entry("a", 7))
        assert numbers == [7]
    (refusal,) = await made.events()
    assert refusal.finish_reason == common_pb2.FINISH_REASON_HANDED_OFF
    assert made.table.find(refused.request.request_id) is None
    assert made.drain.num_requests == 0


async def test_a_request_that_has_ended_sends_nothing_more() -> None:
    made = Table()
    kept, aborted = made.entry("kept", 1), made.entry("aborted", 2)
    assert made.table.enter(kept)
    assert made.table.enter(aborted)
    assert made.table.end(aborted)
    assert not made.table.end(aborted)
    made.table.fail(aborted, QueueFull("the queue is full"))
    made.table.tell(finished(aborted))
    made.table.tell(finished(kept))
    made.table.tell(finished(kept))
    assert made.drain.num_requests == 0
    (event,) = await made.events()
    assert (event.request_id, list(event.token_ids)) == ("kept", [7])


async def test_two_routers_may_use_the_same_request_id() -> None:
    made = Table()
    other = RouterSession("2", "router-2")
    mine, theirs = made.entry("a", 1), made.entry("a", 1, other)
    assert made.table.enter(mine)
    assert made.table.enter(theirs)
    made.table.abort_named("a", other)
    assert made.aborted == [theirs.request.request_id]
    assert made.table.find(mine.request.request_id) is mine
    made.table.abort_session(other)
    made.table.abort_session(made.session)
    assert made.aborted == [theirs.request.request_id, mine.request.request_id]
    assert await made.events() == []


async def test_a_reused_id_is_another_request() -> None:
    """Steps and transfers of the aborted request that are still under way must not reach the later one."""
    made = Table()
    first, second = made.entry("a", 1), made.entry("a", 2)
    assert made.table.enter(first)
    made.table.abort_named("a", made.session)
    assert made.table.enter(second)
    made.table.tell(finished(first))
    assert made.table.find(first.request.request_id) is None
    assert made.table.find(second.request.request_id) is second
    made.table.abort_named("a", made.session)
    assert made.aborted == [first.request.request_id, second.request.request_id]
    assert made.aborted[0] != made.aborted[1]
    assert made.drain.num_requests == 0
    assert await made.events() == []


async def test_a_handed_off_request_is_aborted_and_reported() -> None:
    made = Table()
    for number, name in enumerate("ab"):
        assert made.table.enter(made.entry(name, number))
    draining = asyncio.ensure_future(made.drain.run(0))
    await asyncio.wait((draining,), timeout=0.05)
    assert len(made.aborted) == 2
    made.table.abort_named("a", made.session)  # its router does not need the KV
    made.table.abort_named("c", made.session)
    await asyncio.wait((draining,), timeout=0.05)
    assert not draining.done()
    made.table.abort_session(made.session)
    assert await asyncio.wait_for(draining, 1) == 2
    assert made.drain.num_requests == 0
    reasons = {event.request_id: event.finish_reason for event in await made.events()}
    assert reasons == dict.fromkeys("ab", common_pb2.FINISH_REASON_HANDED_OFF)


async def test_a_running_request_is_taken_over_with_its_output() -> None:
    made = Table()
    other = RouterSession("2", "router-2")
    taken, kept = made.entry("a", 1, resume_key=b"key"), made.entry("b", 1, other, resume_key=b"other")
    assert made.table.enter(taken)
    assert made.table.enter(kept)
    made.table.tell(stepped(taken))
    output = made.table.recall(b"key")
    assert output is not None
    assert (list(output.token_ids), output.num_prompt_tokens, output.finish_reason) == ([5, 7], 1, 0)
    assert made.aborted == [taken.request.request_id]
    assert made.table.find(kept.request.request_id) is kept
    assert made.table.recall(b"key") == output  # the router that took it over may fail too
    assert made.table.recall(b"unknown") is None
    assert made.drain.num_requests == 1
    *_, last = await made.events()
    assert last.finish_reason == common_pb2.FINISH_REASON_ERROR
    assert type(error_from_code(last.error.code, last.error.message)) is Conflict


async def test_the_output_of_every_ended_request_is_kept() -> None:
    made = Table()
    by_end = {"finished": made.entry("1", 1, resume_key=b"1"), "failed": made.entry("2", 2, resume_key=b"2")}
    by_end["aborted"] = made.entry("3", 3, resume_key=b"3")
    by_end["lost"] = made.entry("4", 4, resume_key=b"4")
    by_end["not resumable"] = made.entry("5", 5)
    for entry in by_end.values():
        assert made.table.enter(entry)
        made.table.tell(stepped(entry))
    made.table.tell(finished(by_end["finished"]))
    made.table.fail(by_end["failed"], QueueFull("the queue is full"))
    made.table.abort_named("3", made.session)
    made.table.abort_session(made.session)
    recalled = [made.table.recall(name.encode()) for name in "12345"]
    assert [list(each.token_ids) for each in recalled[:4] if each] == [[5, 7, 7], [5, 7], [5, 7], [5, 7]]
    assert recalled[0] is not None
    assert recalled[0].finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert recalled[4] is None
    assert made.counters.num_remembered == 4
    made.remembered.close()


async def test_the_latest_of_two_requests_with_one_key_is_taken_over() -> None:
    made = Table()
    other = RouterSession("2", "router-2")
    first, second = made.entry("a", 1, resume_key=b"key"), made.entry("a", 1, other, resume_key=b"key")
    assert made.table.enter(first)
    assert made.table.enter(second)
    made.table.abort(first)
    made.table.tell(stepped(second))
    output = made.table.recall(b"key")
    assert output is not None
    assert list(output.token_ids) == [5, 7]
    assert made.aborted == [first.request.request_id, second.request.request_id]
    made.remembered.close()


async def test_the_trace_of_a_request_has_the_reason_of_its_end() -> None:
    made = Table()
    entries = [made.entry(name, number) for number, name in enumerate(("failed", "aborted", "finished", "lost"), 1)]
    for entry in entries:
        assert made.table.enter(entry)
        entry.trace = NO_TRACING.begin("decode", TraceContext(1, 2, is_sampled=False).traceparent, "")
    made.table.fail(entries[0], QueueFull("the queue is full"))
    made.table.abort(entries[1])
    made.table.tell(finished(entries[2]))
    error = RequestOutput(entries[3].request.request_id, 0, error=QueueFull("the queue is full"))
    made.table.tell(StepOutput([error]))
    roots = [entry.trace.root for entry in entries if entry.trace is not None]
    reasons = [root.attributes["gen_ai.response.finish_reasons"] for root in roots]
    assert reasons == [("error",), ("abort",), ("length",), ("error",)]
    assert [root.error for root in roots] == ["QueueFull", None, None, "QueueFull"]
