"""A thread for one call."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def on_own_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function that computes with torch, run on a thread that ends with it.

    OpenMP keeps a team of threads for each thread that ever computed; see `worker/server.py`.
    """
    executor = ThreadPoolExecutor(1, "adapter")
    result = executor.submit(function, *args, **kwargs)
    executor.shutdown(wait=False)
    return await asyncio.wrap_future(result)
