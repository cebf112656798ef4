"""Bounded work of many requests on the event loop."""

import asyncio
import math
from collections.abc import Callable
from itertools import count, pairwise

import grpc
import pytest

from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router.inline_work import TURN_S, InlineWork, Pace
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CLOCK_STEP_S = 1 / 1024


async def test_paced_work_lets_other_tasks_have_their_turn() -> None:
    ticks = count()
    inline = InlineWork(lambda: next(ticks) * CLOCK_STEP_S)
    num_done, num_each_turn = 0, list[int]()

    def work() -> None:
        nonlocal num_done
        num_done += 1

    async def watch() -> None:
        while True:
            num_each_turn.append(num_done)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(inline.run_paced(work) for _ in range(50)))
    watching.cancel()
    num_at_once = math.ceil(TURN_S / CLOCK_STEP_S)
    assert num_done == 50
    assert max(later - earlier for earlier, later in pairwise(num_each_turn)) == num_at_once


async def test_a_paced_task_gives_turns_after_each_turn_of_work() -> None:
    now_s, num_turns = 0.0, 0

    async def watch() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    pace = Pace(lambda: now_s)
    for _ in range(7 * math.ceil(TURN_S / CLOCK_STEP_S)):
        now_s += CLOCK_STEP_S
        await pace.give_turn()
    watching.cancel()
    assert num_turns == 7


async def test_lists_and_messages_that_clients_fill_are_read_in_paced_work(monkeypatch: pytest.MonkeyPatch) -> None:
    inline = InlineWork()
    num_paced = 0

    async def run_paced(_inline: InlineWork, work: Callable[[], object]) -> object:
        nonlocal num_paced
        num_paced += 1
        return inline.run(work)

    async with running_router(ScriptedWorker()) as router:
        monkeypatch.setattr(InlineWork, "run_paced", run_paced)
        await router.http.post("/v1/completions", json={"prompt": [[1.0, 2.0], [1.0]], "max_tokens": 1})
        assert num_paced == 3  # each prompt, and the end of the list
        await router.http.post("/detokenize", json={"tokens": [1.0, 2.0]})
        assert num_paced == 4
        async with grpc.aio.insecure_channel(router.grpc_address) as channel:
            async for _ in InferenceStub(channel).Generate(GenerateRequest(text="hello")):
                pass
        assert num_paced == 5
