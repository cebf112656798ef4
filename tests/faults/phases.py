"""Phases of a request, and waits until requests have reached them."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tests.faults.workload import Exchange

Reach = Callable[[Sequence[Exchange], float, random.Random], Awaitable[None]]  # 2nd: usual TTFT in s


async def queued(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """Wait until shortly after the requests were sent."""
    await asyncio.sleep(rng.uniform(0, 0.15) * ttft_s)


async def prefilling(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """Wait until the prompts are partly prefilled and the first blocks are being transferred."""
    await asyncio.sleep(rng.uniform(0.15, 0.8) * ttft_s)


async def handing_over(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """Wait until the last blocks are being transferred."""
    await asyncio.sleep(rng.uniform(0.8, 1.1) * ttft_s)


async def first_token(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """Wait until a client has just received its first token."""
    waits = [asyncio.ensure_future(exchange.wait_tokens(1)) for exchange in exchanges]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def decoding(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """Wait until the middle of the responses."""
    await rng.choice(exchanges).wait_tokens(rng.randint(2, 12))


PHASES: Mapping[str, Reach] = {
    "queued": queued,
    "prefilling": prefilling,
    "handing over": handing_over,
    "first token": first_token,
    "decoding": decoding,
}
BEFORE_DECODING = ("queued", "prefilling", "handing over")
