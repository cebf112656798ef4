"""Running systems."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from rich.console import Console

from baton.loadtool.slo import Slo
from benchmarks.disaggregation.client import Client
from benchmarks.disaggregation.system import System


@asynccontextmanager
async def running(systems: Sequence[System], slo: Slo | None, console: Console) -> AsyncIterator[dict[str, Client]]:
    """Start the systems with an SLO (None: without), and yield their clients by name."""
    async with AsyncExitStack() as stack:
        yield {system.name: Client(await stack.enter_async_context(system.running(slo)), console) for system in systems}
