"""Simulated workers in a separate process."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def simulated(*flags: str) -> AsyncIterator[dict[str, Any]]:
    """Run `python -m baton.simulation.workers FLAGS`; yield its report, and check its exit status."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.simulation.workers", *flags, stdout=asyncio.subprocess.PIPE, limit=1 << 22
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, "it ended before it served"
        yield json.loads(line)
    finally:
        if process.returncode is None:
            process.terminate()
        status = await process.wait()
    assert status == 0
