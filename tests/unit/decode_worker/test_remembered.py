"""Outputs of finished requests in a decode worker: bounded in number, tokens and time."""

import asyncio

from baton.decode_worker.remembered import RememberedOutputs
from baton.protos.worker_pb2 import RecalledOutput
from baton.worker.reporting import WorkerCounters

LONG_S = 1000.0


def output(name: str, *token_ids: int) -> RecalledOutput:
    return RecalledOutput(resume_key=name.encode(), token_ids=token_ids)


async def test_the_latest_output_of_a_request_is_found_more_than_once() -> None:
    counters = WorkerCounters()
    remembered = RememberedOutputs(counters, LONG_S)
    remembered.keep(output("a", 1, 2, 3))
    remembered.keep(output("a", 1, 2))
    assert remembered.find(b"a") == remembered.find(b"a") == output("a", 1, 2)
    assert remembered.find(b"b") is None
    assert counters.num_remembered == 1
    remembered.close()
    assert remembered.find(b"a") is None
    assert counters.num_remembered == 0


async def test_the_oldest_outputs_are_dropped_above_a_bound() -> None:
    counters = WorkerCounters()
    remembered = RememberedOutputs(counters, LONG_S, max_requests=3, max_tokens=10)
    for name in "abcd":
        remembered.keep(output(name, 1, 2))
    assert [name for name in "abcd" if remembered.find(name.encode())] == ["b", "c", "d"]
    remembered.keep(output("e", *range(7)))
    assert [name for name in "abcde" if remembered.find(name.encode())] == ["d", "e"]
    remembered.keep(output("f", *range(11)))
    assert remembered.find(b"f") is None
    assert counters.num_remembered == 2
    remembered.close()


async def test_outputs_expire_without_a_lookup() -> None:
    counters = WorkerCounters()
    remembered = RememberedOutputs(counters, 0.02)
    remembered.keep(output("a", 1))
    remembered.keep(output("b", 1))
    assert counters.num_remembered == 2
    async with asyncio.timeout(20):
        while counters.num_remembered:
            await asyncio.sleep(0.005)
    assert remembered.find(b"a") is None
    remembered.keep(output("c", 1))
    assert counters.num_remembered == 1
    remembered.close()


async def test_nothing_is_kept_if_disabled_or_without_output() -> None:
    counters = WorkerCounters()
    off, on = RememberedOutputs(counters, 0.0), RememberedOutputs(counters, LONG_S)
    off.keep(output("a", 1))
    on.keep(output("b"))
    assert off.find(b"a") is on.find(b"b") is None
    assert counters.num_remembered == 0
