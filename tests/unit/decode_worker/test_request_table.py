"""A decode worker's requests: each ends once, and each command's number is told once, whatever becomes of it."""

from baton.decode_worker.decode_request import DecodeRequest
from baton.decode_worker.request_table import RequestTable
from baton.decode_worker.router_session import RouterSession
from baton.engine.errors import QueueFull
from baton.engine.outputs import RequestOutput, SampledToken, StepOutput
from baton.engine.request import FinishReason, RequestId
from baton.protos import common_pb2, worker_pb2
from baton.rpc.drain import Drain
from baton.rpc.worker_counters import WorkerCounters

ROUTER = "router-1"


class Table:
    """A table, what it counts in, and the news of a session."""

    def __init__(self) -> None:
        self.counters, self.drain = WorkerCounters(), Drain()
        self.aborted: list[RequestId] = []  # in the engine
        self.table = RequestTable(self.counters, self.drain, self.aborted.append)
        self.session = RouterSession("1", ROUTER)

    def entry(self, name: str, number: int, session: RouterSession | None = None) -> DecodeRequest:
        command = worker_pb2.GenerateCommand(request_id=name, token_ids=[1], num_prompt_tokens=1, number=number)
        return DecodeRequest.of(command, session or self.session, "decode-0")

    async def news(self) -> list[worker_pb2.RequestDelta]:
        self.session.close()
        return [delta async for message in self.session.messages() for delta in message.deltas]


def finished(entry: DecodeRequest) -> StepOutput:
    output = RequestOutput(entry.request.request_id, 1, SampledToken(7), finish_reason=FinishReason.LENGTH)
    return StepOutput([output])


async def test_a_command_that_came_before_is_not_taken_again() -> None:
    made = Table()
    assert made.table.enter(made.entry("a", 1))
    assert not made.table.enter(made.entry("a", 1))
    assert made.drain.num_requests == 1
    assert await made.news() == []


async def test_a_command_refused_for_draining_counts_as_taken() -> None:
    made = Table()
    made.drain.begin()
    with made.counters.taken.watched(ROUTER) as numbers:
        assert not made.table.enter(refused := made.entry("a", 7))
        assert numbers == [7]
    (refusal,) = await made.news()
    assert refusal.finish_reason == common_pb2.FINISH_REASON_HANDED_OFF
    assert made.table.find(refused.request.request_id) is None
    assert made.drain.num_requests == 0


async def test_what_has_ended_says_nothing_more() -> None:
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
    (news,) = await made.news()
    assert (news.request_id, list(news.token_ids)) == ("kept", [7])


async def test_routers_may_call_their_requests_alike() -> None:
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
    assert await made.news() == []


async def test_what_is_handed_off_leaves_the_engine_and_says_so() -> None:
    made = Table()
    for number, name in enumerate("ab"):
        assert made.table.enter(made.entry(name, number))
    assert await made.drain.run(0) == 2
    assert len(made.aborted) == 2
    assert made.drain.num_requests == 0
    told = {news.request_id: news.finish_reason for news in await made.news()}
    assert told == dict.fromkeys("ab", common_pb2.FINISH_REASON_HANDED_OFF)
