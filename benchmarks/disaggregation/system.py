"""The systems that are compared: what their two workers are for, and who decides where a prompt is computed."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.disaggregation.trace import PROMPT_TOKENS
from benchmarks.server import served
from loadtool.first_contact import reach
from loadtool.target import Target

# Of all systems: processes that are started alike, with memory for about 130,000 tokens each.
ENGINE = ("--num-threads=1", "--kv-cache-memory-bytes=256MiB")
# On one machine short prompts are local and others remote unless this says otherwise; here prices are to decide.
BY_PRICE = "router:\n  local_prefill_below: null\n"


@dataclass(frozen=True, slots=True)
class System:
    """Two workers and a router."""

    name: str
    flags: Sequence[str]  # of `baton serve`

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Target]:
        """Starts it; yields where requests go."""
        with tempfile.TemporaryDirectory(prefix="disaggregation-") as folder:
            config = Path(folder) / "baton.yaml"
            config.write_text(BY_PRICE)
            async with served("", f"--config={config}", *ENGINE, *self.flags) as url:
                yield await asyncio.to_thread(reach, Target(base_url=url), PROMPT_TOKENS)


COLOCATED = System("colocated", ("--both=2",))
SYSTEMS = (
    COLOCATED,
    System("always_remote", ("--prefill=1", "--decode=1", "--policy=always_remote")),
    System("priced", ("--prefill=1", "--decode=1", "--policy=cost")),
)
