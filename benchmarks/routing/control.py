"""How a process of simulated workers talks with the benchmark: a JSON line when they serve, one for each line asked.

The process ends when its standard input does.
"""

import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

import orjson

from benchmarks.routing.worker_counts import WorkerCounts


def announce(addresses: Sequence[str]) -> None:
    """Says where the workers serve; from now on no collection holds the engines up."""
    gc.disable()
    sys.stdout.buffer.write(orjson.dumps({"addresses": list(addresses)}) + b"\n")
    sys.stdout.buffer.flush()


async def answer_until_end(counts: Callable[[], Sequence[WorkerCounts]]) -> None:
    """Answers each line with what the workers have done since the start."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        sys.stdout.buffer.write(orjson.dumps([asdict(each) for each in counts()]) + b"\n")
        sys.stdout.buffer.flush()
