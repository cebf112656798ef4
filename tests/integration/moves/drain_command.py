"""The commands `baton drain` and `baton undrain`."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT


async def drain(url: str, worker: str, *options: str) -> str:
    """Run `baton drain` and return its output."""
    return await run("drain", worker, "--url", url, *options)


async def undrain(url: str, worker: str) -> str:
    """Run `baton undrain` and return its output."""
    return await run("undrain", worker, "--url", url)


async def run(*arguments: str) -> str:
    command = (sys.executable, "-m", "baton", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    return output.decode()
