"""Protocol between a process of simulated workers and the benchmark: a JSON line when ready, then one per input line.

The process ends when its standard input is closed.
"""

import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

import orjson

from benchmarks.routing.workers.counts import WorkerCounts


def announce(addresses: Sequence[str]) -> None:
    """Print the workers' addresses, and disable garbage collection, which would delay the engines."""
    gc.disable()
    sys.stdout.buffer.write(orjson.dumps({"addresses": list(addresses)}) + b"\n")
    sys.stdout.buffer.flush()


async def answer_until_end(counts: Callable[[], Sequence[WorkerCounts]]) -> None:
    """Respond to each line with the workers' counts since the start."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        sys.stdout.buffer.write(orjson.dumps([asdict(each) for each in counts()]) + b"\n")
        sys.stdout.buffer.flush()
