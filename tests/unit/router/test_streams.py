"""Mailboxes, merged streams."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest

from baton.protos.common_pb2 import FINISH_REASON_STOP, PositionLogprobs, ServedBy
from baton.protos.worker_pb2 import RequestDelta
from baton.router.errors import WorkerLost
from baton.router.stream_merge import STARTS_PER_TURN, StreamMerge
from baton.router.workers.attach_stream import Mailbox
from baton.rpc.backoff import Backoff


async def test_unread_deltas_merge() -> None:
    mailbox = Mailbox()
    mailbox.put(RequestDelta(token_ids=[1], served_by=ServedBy(decode_worker="d")))
    for token_id in range(2, 100):
        mailbox.put(RequestDelta(token_ids=[token_id]))
    mailbox.put(RequestDelta(token_ids=[100], finish_reason=FINISH_REASON_STOP))
    delta = await mailbox.get()
    assert list(delta.token_ids) == list(range(1, 101))
    assert (delta.served_by.decode_worker, delta.finish_reason) == ("d", FINISH_REASON_STOP)


async def test_a_reader_waits_and_is_woken() -> None:
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put(RequestDelta(token_ids=[5]))
    assert list((await reader).token_ids) == [5]


async def test_an_error_follows_the_pending_delta() -> None:
    mailbox = Mailbox()
    mailbox.put(RequestDelta(token_ids=[5]))
    mailbox.fail(WorkerLost("gone"))
    assert list((await mailbox.get()).token_ids) == [5]
    with pytest.raises(WorkerLost):
        await mailbox.get()


class Numbers:
    """Streams that record whether they were closed."""

    def __init__(self) -> None:
        self.num_closed = 0
        self.num_given = 0

    async def stream(self, start: int, end: int | None, error: Exception | None = None) -> AsyncGenerator[int, None]:
        try:
            number = start
            while end is None or number < end:
                self.num_given += 1
                yield number
                number += 1
                await asyncio.sleep(0)
            if error is not None:
                raise error
        finally:
            self.num_closed += 1


async def test_merged_streams_give_everything_in_each_ones_order() -> None:
    numbers = Numbers()
    async with StreamMerge[int](bound=3) as merged:
        await merged.add(numbers.stream(0, 20))
        got: list[int] = []
        async for number in merged:
            if number == 5:
                await merged.add(numbers.stream(100, 120))  # one may come later
            got.append(number)
    assert [each for each in got if each < 100] == list(range(20))
    assert [each for each in got if each >= 100] == list(range(100, 120))
    assert numbers.num_closed == 2


async def test_starting_many_streams_gives_other_tasks_their_turns() -> None:
    num_started, num_each_turn = 0, list[int]()

    async def stream() -> AsyncGenerator[int, None]:
        nonlocal num_started
        num_started += 1
        yield num_started

    async def watch() -> None:
        while True:
            num_each_turn.append(num_started)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with StreamMerge[int](bound=100) as merged:
        for _ in range(50):
            await merged.add(stream())
        assert len([number async for number in merged]) == 50
    watching.cancel()
    assert max(later - earlier for earlier, later in pairwise(num_each_turn)) <= STARTS_PER_TURN


async def test_leaving_a_merge_closes_its_streams_even_when_full() -> None:
    numbers = Numbers()
    async with StreamMerge[int](bound=2) as merged:
        for start in (0, 1000):
            await merged.add(numbers.stream(start, None))
        async for number in merged:
            if number >= 1003:
                break
    assert numbers.num_closed == 2


async def test_one_streams_error_ends_the_merge() -> None:
    numbers = Numbers()

    async def read() -> None:
        async with StreamMerge[int](bound=2) as merged:
            await merged.add(numbers.stream(0, None))
            await merged.add(numbers.stream(1000, 1002, ValueError("broken")))
            async for _ in merged:
                pass

    with pytest.raises(ValueError, match="broken"):
        await read()
    assert numbers.num_closed == 2


async def test_pauses_double_and_reset_after_a_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, time_s = [], [100.0]

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        time_s[0] += pause_s

    monkeypatch.setattr("baton.rpc.backoff.asyncio.sleep", sleep)
    monkeypatch.setattr("baton.rpc.backoff.random.uniform", lambda low, high: high)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time_s[0])
    backoff = Backoff(first_s=0.25, last_s=1.0)
    for _ in range(4):
        await backoff.wait()
    time_s[0] += 1.5
    await backoff.wait()
    assert pauses == [0.25, 0.5, 1.0, 1.0, 0.25]


async def test_a_patient_reader_gets_the_first_token_and_then_the_rest_at_once() -> None:
    heard: list[int] = []
    mailbox = Mailbox(patient=True, note_tokens=heard.append)
    mailbox.put(RequestDelta(prompt_logprobs=[PositionLogprobs()]))
    assert len((await mailbox.get()).prompt_logprobs) == 1
    mailbox.put(RequestDelta(token_ids=[1]))
    assert list((await mailbox.get()).token_ids) == [1]
    reader = asyncio.create_task(mailbox.get())
    for token_id in range(2, 6):
        mailbox.put(RequestDelta(token_ids=[token_id]))
        await asyncio.sleep(0)
        assert not reader.done()
    assert sum(heard) == 5  # they came, whoever reads them when
    mailbox.put(RequestDelta(token_ids=[6], finish_reason=FINISH_REASON_STOP))
    assert list((await reader).token_ids) == [2, 3, 4, 5, 6]


async def test_a_patient_reader_gets_all_output_of_a_lost_worker() -> None:
    mailbox = Mailbox(patient=True)
    for token_id in (1, 2):
        mailbox.put(RequestDelta(token_ids=[token_id]))
        if token_id == 1:
            await mailbox.get()
    mailbox.fail(WorkerLost("gone"))
    assert list((await mailbox.get()).token_ids) == [2]
    with pytest.raises(WorkerLost):
        await mailbox.get()
