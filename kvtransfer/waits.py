"""Waits that a cancellation does not cut short."""

import asyncio
from typing import Any


async def settled(future: "asyncio.Future[Any]") -> None:
    """Returns when a future has ended, however that was; a cancellation of the caller is raised only then."""
    was_cancelled = False  # and not the error, which would know this frame; see `threads`
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        if not future.cancelled():
            future.exception()  # which is nobody's any more
        raise asyncio.CancelledError
