"""Concurrent entry of slow context managers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def together(*contexts: AbstractAsyncContextManager[T]) -> AsyncIterator[list[T]]:
    """Enter and exit all contexts concurrently; each that was entered is exited, whatever happens."""
    stacks = [AsyncExitStack() for _ in contexts]
    starts = [
        asyncio.create_task(stack.enter_async_context(context)) for stack, context in zip(stacks, contexts, strict=True)
    ]
    try:
        await asyncio.wait(starts)
        yield [start.result() for start in starts]
    finally:
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        await asyncio.gather(*(stack.aclose() for stack in stacks))
