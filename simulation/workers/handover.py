"""One prompt's KV on its way from a simulated prefill engine to another engine.

The chunks are announced as they are computed; each one's blocks come over the link while the next is being computed.
The token that follows the prompt is passed on at once.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from baton.engine.outputs import SampledToken
from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.simulation.engine.clock import sleep_until
from baton.simulation.engine.link import Link
from baton.simulation.engine.request import OpenPrefill, PrefilledChunk


@dataclass(frozen=True, slots=True)
class _Arrival:
    """From `at_s` on the loop's clock, the blocks up to `num_blocks` are here."""

    at_s: float
    num_blocks: int


class Handover:
    """Owns one prompt's way; `received` says at any time what has come."""

    def __init__(
        self,
        request: Request,
        block_size: int,
        link: Link,
        open_prefill: OpenPrefill,
        on_first_token: Callable[[PrefilledChunk], None],
        num_known_tokens: int,
    ) -> None:
        """`num_known_tokens`: whose KV is here already."""
        self.request = request
        self.num_blocks = -(-request.num_tokens // block_size)
        self._block_size = block_size
        self._link = link
        self._open_prefill = open_prefill
        self._on_first_token = on_first_token
        self._num_tokens = request.num_tokens
        self._num_known_blocks = num_known_tokens // block_size
        self._arrivals: list[_Arrival] = []
        self._sampled: SampledToken | None = None
        self._computed_at_s = 0.0  # when the last chunk was announced

    @property
    def num_blocks_received(self) -> int:
        """Blocks that came and are here."""
        now_s = asyncio.get_running_loop().time()
        here = max((each.num_blocks for each in self._arrivals if each.at_s <= now_s), default=self._num_known_blocks)
        return here - self._num_known_blocks

    @property
    def received(self) -> Received:
        """What is here; a token that was passed on counts even if blocks before it are missing."""
        num_tokens = min((self._num_known_blocks + self.num_blocks_received) * self._block_size, self._num_tokens)
        return Received(num_tokens, self._sampled)

    @property
    def exposed_s(self) -> float:
        """Seconds that the last block comes after the last chunk was computed."""
        if not self._arrivals or self._sampled is None:
            return 0.0
        return max(0.0, self._arrivals[-1].at_s - self._computed_at_s)

    async def run(self) -> None:
        """Returns when all blocks and the token are here; raises ConnectionError. What is on its way then is lost."""
        try:
            async with aclosing(self._open_prefill(self._num_known_blocks * self._block_size)) as chunks:
                async for chunk in chunks:
                    self._take(chunk)
                    if chunk.first_token is not None:
                        await sleep_until(self._arrivals[-1].at_s if self._arrivals else 0.0)
                        return
            raise ConnectionError("the prefill ended before its last chunk")
        finally:
            now_s = asyncio.get_running_loop().time()
            self._arrivals = [arrival for arrival in self._arrivals if arrival.at_s <= now_s]

    def _take(self, chunk: PrefilledChunk) -> None:
        is_last = chunk.first_token is not None
        self._computed_at_s = asyncio.get_running_loop().time()
        num_ready = self.num_blocks if is_last else chunk.num_computed_tokens // self._block_size
        num_announced = self._arrivals[-1].num_blocks if self._arrivals else self._num_known_blocks
        if num_ready > num_announced:
            self._arrivals.append(_Arrival(self._link.reserve(num_ready - num_announced), num_ready))
        if chunk.first_token is not None:
            self._sampled = SampledToken(chunk.first_token)
            self._on_first_token(chunk)
