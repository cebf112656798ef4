"""The compared systems: the roles of their two workers, and the policy that places prefills."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from baton.loadtool.probe import probe
from baton.loadtool.slo import Slo
from baton.loadtool.target import Target
from benchmarks.disaggregation.trace import PROMPT_TOKENS
from benchmarks.server import served

# For all systems: equal processes, with KV memory for about 130,000 tokens each.
ENGINE = ("--num-threads=1", "--kv-cache-memory-bytes=256MiB")


@dataclass(frozen=True, slots=True)
class System:
    """Two workers and a router."""

    name: str
    flags: Sequence[str]  # of `baton serve`

    @asynccontextmanager
    async def running(self, slo: Slo | None) -> AsyncIterator[Target]:
        """Start the system and yield its target. `slo` None: no SLO."""
        with tempfile.TemporaryDirectory(prefix="disaggregation-") as folder:
            config = Path(folder) / "baton.yaml"
            config.write_text(yaml.safe_dump({"router": self._router(slo)}))
            async with served("", f"--config={config}", *ENGINE, *self.flags) as url:
                yield await asyncio.to_thread(probe, Target(base_url=url), PROMPT_TOKENS)

    def _router(self, slo: Slo | None) -> dict[str, float | None]:
        """Return router options that enable the cost model, instead of one machine's fixed length threshold."""
        router: dict[str, float | None] = {"local_prefill_below": None}
        if slo is not None and slo.ttft_s is not None and slo.tpot_s is not None:
            router |= {"target_ttft_ms": 1000 * slo.ttft_s, "target_tpot_ms": 1000 * slo.tpot_s}
        return router


COLOCATED = System("colocated", ("--colocated=2",))
SYSTEMS = (
    COLOCATED,
    System("always_remote", ("--prefill=1", "--decode=1", "--policy=always_remote")),
    System("priced", ("--colocated=1", "--decode=1", "--policy=cost")),
)
