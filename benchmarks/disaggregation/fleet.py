"""The systems that run."""

from contextlib import AsyncExitStack

from rich.console import Console

from benchmarks.disaggregation.client import Client
from benchmarks.disaggregation.system import System
from loadtool.slo import Slo


class Fleet:
    """Owns the systems; each is started when it is first asked for, and runs to the stack's end."""

    def __init__(self, stack: AsyncExitStack, console: Console) -> None:
        self._stack = stack
        self._console = console
        self._clients: dict[tuple[str, Slo | None], Client] = {}

    async def client(self, system: System, slo: Slo | None) -> Client:
        """Of a system, which knows what is promised if it can."""
        key = (system.name, slo if system.is_told else None)
        if key not in self._clients:
            self._console.print(f"starting {system.name}" + (f" for {slo}" if key[1] is not None else ""))
            target = await self._stack.enter_async_context(system.running(key[1]))
            self._clients[key] = Client(target, self._console)
        return self._clients[key]
