"""Phases of a request's life, and how one gets there."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tests.faults.workload import Exchange

Reach = Callable[[Sequence[Exchange], float, random.Random], Awaitable[None]]  # by the usual TTFT in seconds


async def queued(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """The prompts have hardly begun."""
    await asyncio.sleep(rng.uniform(0, 0.15) * ttft_s)


async def prefilling(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """Between two chunks of the prompts; the first blocks are on their way."""
    await asyncio.sleep(rng.uniform(0.15, 0.8) * ttft_s)


async def handing_over(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """The last blocks are on their way."""
    await asyncio.sleep(rng.uniform(0.8, 1.1) * ttft_s)


async def first_token(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """A client has just got its first token."""
    waits = [asyncio.ensure_future(exchange.wait_tokens(1)) for exchange in exchanges]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def decoding(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """In the middle of the answers."""
    await rng.choice(exchanges).wait_tokens(rng.randint(2, 12))


PHASES: Mapping[str, Reach] = {
    "queued": queued,
    "prefilling": prefilling,
    "handing over": handing_over,
    "first token": first_token,
    "decoding": decoding,
}
BEFORE_DECODING = ("queued", "prefilling", "handing over")
