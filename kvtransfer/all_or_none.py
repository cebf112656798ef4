"""Several things at once, of which none goes on when one fails."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def all_or_none(*steps: Coroutine[Any, Any, None]) -> None:
    """Returns when all are done; when one fails, or this is cancelled, ends the others and raises the first error."""
    if len(steps) == 1:
        return await steps[0]
    tasks = [asyncio.ensure_future(each) for each in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
