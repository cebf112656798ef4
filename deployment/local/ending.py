"""The end of several processes."""

import asyncio
from collections.abc import Sequence
from itertools import chain

from baton.deployment.local.supervisor import Supervisor


async def end_all(stages: Sequence[Sequence[Supervisor]], timeout_s: float, kill: asyncio.Event) -> None:
    """Ends the processes of one stage after the other, each within `timeout_s`; all at once when `kill` is set."""

    async def stop() -> None:
        for stage in stages:
            await asyncio.gather(*(each.stop(timeout_s) for each in stage))

    ending = asyncio.create_task(stop())
    killed = asyncio.create_task(kill.wait())
    await asyncio.wait([ending, killed], return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        for supervisor in chain.from_iterable(stages):
            supervisor.kill()
    await ending
    killed.cancel()
