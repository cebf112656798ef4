"""`baton drain`, as an operator types it."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT


async def drain(url: str, worker: str, *options: str) -> str:
    """What the command says, once it has ended."""
    command = (sys.executable, "-m", "baton", "drain", worker, "--url", url, *options)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    return output.decode()
