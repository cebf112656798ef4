"""Ends of processes that are not the test's own children, which therefore cannot be waited for."""

import asyncio

import psutil

TIMEOUT_S = 20.0


def runs(process: psutil.Process) -> bool:
    """Return whether the process exists and is not a zombie without threads, which could still hold its sockets."""
    try:
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:  # it ended between the two calls
        return False


async def wait_gone(*ended: psutil.Process) -> None:
    """Wait until none of the processes runs any more."""
    async with asyncio.timeout(TIMEOUT_S):
        while any(runs(each) for each in ended):
            await asyncio.sleep(0.02)
