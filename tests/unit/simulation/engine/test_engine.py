"""Simulated engines, in virtual time: every time is exact."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from baton.engine.errors import EngineEnded, InvalidRequest, QueueFull
from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import OpenPrefill, PrefilledChunk, SimulatedRequest, SimulatedToken
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import continuation
from baton.simulation.engine.virtual_time import run_in_virtual_time

SPEC = WorkerSpec(
    block_size=4,
    num_blocks=65,
    max_num_seqs=4,
    max_num_batched_tokens=100,
    max_queue_len=6,
    step_s=1.0,
    sequence_s=0.01,
    prefill_tokens_per_s=10.0,
    block_bytes=10,
    link_bytes_per_s=10.0,  # a block per second
)


def request(request_id: str, token_ids: list[int], num_output_tokens: int, cache_salt: str = "") -> SimulatedRequest:
    return SimulatedRequest(
        request_id=request_id, token_ids=token_ids, num_output_tokens=num_output_tokens, cache_salt=cache_salt
    )


async def timed(
    engine: SimulatedEngine, submitted: SimulatedRequest, prefill: OpenPrefill | None = None
) -> tuple[list[SimulatedToken], list[float]]:
    """Return the tokens and the seconds from now to each."""
    loop = asyncio.get_running_loop()
    begin_s, tokens, times = loop.time(), [], []
    async for token in engine.generate(submitted, prefill):
        tokens.append(token)
        times.append(loop.time() - begin_s)
    return tokens, times


def test_one_request_takes_the_time_of_its_steps() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        tokens, times = await timed(engine, request("a", list(range(150)), 3))
        assert [token.token_id for token in tokens] == continuation(list(range(150)), 3, SPEC)
        assert [token.is_last for token in tokens] == [False, False, True]
        # chunks of 100 and 50 tokens, then one token per step
        assert times == pytest.approx([1 + 10 + 1 + 5, 18.01, 19.02])
        assert engine.counters.busy_s == pytest.approx(19.02)
        assert engine.counters.prefilled_tokens == 150
        assert engine.counters.generated_tokens == 3

    run_in_virtual_time(main())


def test_time_scale_stretches_time() -> None:
    async def main() -> None:
        _, times = await timed(SimulatedEngine(SPEC, time_scale=0.1), request("a", list(range(150)), 2))
        assert times == pytest.approx([1.7, 1.801])

    run_in_virtual_time(main())


def test_a_cached_prefix_is_not_computed_again() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        await timed(engine, request("a", list(range(40)), 1))
        tokens, times = await timed(engine, request("b", [*range(40), 90, 91], 1))
        assert tokens[0].num_cached_tokens == 40
        assert times == pytest.approx([1.2])
        other, _ = await timed(engine, request("c", list(range(40)), 1, cache_salt="another tenant's"))
        assert other[0].num_cached_tokens == 0
        load = engine.load()
        assert (load.num_cached_tokens, load.num_looked_up_tokens) == (40, 40 + 42 + 40)

    run_in_virtual_time(main())


def test_requests_are_batched() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        submitted = [request(str(index), [index] * 8, 2) for index in range(4)]
        results = await asyncio.gather(*(timed(engine, each) for each in submitted))
        for _, times in results:
            assert times == pytest.approx([1 + 3.2, 4.2 + 1.04])

    run_in_virtual_time(main())


def test_the_queue_is_bounded() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        submitted = [request(str(index), [index] * 8, 2) for index in range(7)]
        results = await asyncio.gather(*(timed(engine, each) for each in submitted), return_exceptions=True)
        assert [isinstance(result, QueueFull) for result in results] == [False] * 6 + [True]
        engine.core.scheduler.check_integrity()

    run_in_virtual_time(main())


def test_impossible_requests_are_refused() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        for wrong, reason in (
            (request("a", [], 1), "at least one token"),
            (request("b", [1] * 300, 1), "context"),
            (request("c", [1], 0), "max_tokens"),
        ):
            with pytest.raises(InvalidRequest, match=reason):
                await timed(engine, wrong)
        await engine.close()
        with pytest.raises(EngineEnded):
            await timed(engine, request("d", [1], 1))

    run_in_virtual_time(main())


def test_closing_the_stream_aborts_within_a_step() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        async with aclosing(engine.generate(request("a", [1] * 20, 50))) as tokens:
            await anext(tokens)
        assert engine.load().num_running == 1  # the step in flight computes it
        await asyncio.sleep(2)
        load = engine.load()
        assert (load.num_running, load.num_free_blocks) == (0, load.num_blocks)
        engine.core.scheduler.check_integrity()

    run_in_virtual_time(main())


def test_an_abort_ends_the_stream() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        stream = asyncio.create_task(timed(engine, request("a", [1] * 20, 50)))
        await asyncio.sleep(10)
        engine.abort("a")
        engine.abort("unknown")
        tokens, _ = await stream
        assert 0 < len(tokens) < 50
        assert not tokens[-1].is_last

    run_in_virtual_time(main())


def test_an_idle_engine_does_nothing() -> None:
    async def main() -> int:
        engine = SimulatedEngine(SPEC)
        await timed(engine, request("a", [1] * 20, 2))
        steps = engine.counters.steps
        await asyncio.sleep(1000)
        assert engine.counters.steps == steps
        return steps

    assert run_in_virtual_time(main()) == 2


def test_a_handover_overlaps_with_the_prefill() -> None:
    async def main() -> None:
        prefill, decode = SimulatedEngine(SPEC), SimulatedEngine(SPEC)
        submitted = request("a", list(range(150)), 3)
        known: list[int] = []

        def prefilled(submitted: SimulatedRequest) -> OpenPrefill:
            def open_prefill(num_cached_tokens: int) -> AsyncGenerator[PrefilledChunk, None]:
                known.append(num_cached_tokens)
                return prefill.prefill(submitted)

            return open_prefill

        tokens, times = await timed(decode, submitted, prefilled(submitted))
        assert [token.token_id for token in tokens] == continuation(submitted.token_ids, 3, SPEC)
        # Chunks at 11 s (25 blocks) and 17 s (13 more); the link needs a second for each block from 11 s on.
        assert times == pytest.approx([17, 11 + 38 + 1.01, 11 + 38 + 2.02])
        assert decode.counters.prefilled_tokens == 0
        assert decode.counters.received_tokens == 150
        longer = request("b", [*submitted.token_ids, *range(50)], 2)
        again, times = await timed(decode, longer, prefilled(longer))
        assert times == pytest.approx([1 + 5.2, 6.2 + 13 + 1.01])  # both have the first 37 blocks cached
        assert known == [0, 148]
        assert again[0].num_cached_tokens == 148
        assert prefill.load().num_free_blocks == prefill.load().num_blocks

    run_in_virtual_time(main())


def test_a_first_token_that_ends_the_request_needs_no_kv() -> None:
    async def main() -> None:
        prefill, decode = SimulatedEngine(SPEC), SimulatedEngine(SPEC)
        submitted = request("a", list(range(50)), 1)
        tokens, times = await timed(decode, submitted, lambda _: prefill.prefill(submitted))
        assert [token.is_last for token in tokens] == [True]
        assert times == pytest.approx([6])
        await asyncio.sleep(100)
        for engine in (prefill, decode):
            assert engine.load().num_free_blocks == engine.load().num_blocks
            engine.core.scheduler.check_integrity()

    run_in_virtual_time(main())


def test_kv_that_does_not_arrive_is_computed() -> None:
    async def main() -> None:
        prefill, decode = SimulatedEngine(SPEC), SimulatedEngine(SPEC)
        submitted = request("a", list(range(150)), 3)

        async def half(_: int) -> AsyncGenerator[PrefilledChunk, None]:
            async with aclosing(prefill.prefill(submitted)) as chunks:
                yield await anext(chunks)
                await asyncio.sleep(26)

        tokens, _ = await timed(decode, submitted, half)
        assert [token.token_id for token in tokens] == continuation(submitted.token_ids, 3, SPEC)
        assert decode.counters.received_tokens == 100
        assert decode.counters.prefilled_tokens == 50
        await asyncio.sleep(100)
        assert prefill.load().num_free_blocks == prefill.load().num_blocks

    run_in_virtual_time(main())


def test_closing_the_generator_of_an_aborted_request_keeps_a_later_one_with_its_id() -> None:
    async def main() -> None:
        engine = SimulatedEngine(SPEC)
        async with aclosing(engine.generate(request("a", [1, 2, 3], 9))) as aborted:
            await anext(aborted)
            engine.abort("a")
            await asyncio.sleep(5)  # its step has ended
            later = asyncio.ensure_future(timed(engine, request("a", [4, 5], 9)))
            await asyncio.sleep(2)
        tokens, _ = await later
        assert [token.token_id for token in tokens] == continuation([4, 5], 9, SPEC)

    run_in_virtual_time(main())
