"""A client that goes away ends the work for it."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


async def until_disconnect(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away (ClientGone). The body must have been read."""
    task = asyncio.ensure_future(work)
    watch = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
