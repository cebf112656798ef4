"""The process of a follower rank."""

import asyncio
import sys
from dataclasses import replace

from baton.process.child import ChildProcess, ProcessSpec
from baton.process.logs import log_settings
from baton.process.progress import Failed
from baton.settings.flags import flags_of
from baton.worker.config import WorkerConfig, rank_suffix

END_TIMEOUT_S = 10.0  # from SIGTERM to SIGKILL
LAST_REPORT_S = 1.0  # after the process has ended, to read the rest of its progress reports


class RankProcess:
    """A started rank; it ends with this process."""

    def __init__(self, rank: int, child: ChildProcess) -> None:
        self._rank = rank
        self._child = child
        self._failure: str | None = None  # reported by the process
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, config: WorkerConfig, rank: int, leader: str) -> "RankProcess":
        """Start rank number `rank` of the worker on this node; leader: address at which it connects to the first."""
        return cls(rank, await ChildProcess.start(_spec(config, rank, leader)))

    async def wait(self) -> bool:
        """Wait for its end, and return whether it ended in order."""
        status = await self._child.wait()
        await asyncio.wait((self._reading,), timeout=LAST_REPORT_S)
        return status == 0

    def describe_end(self) -> str:
        """Return how it ended, for messages."""
        how = f"ended: {self._failure}" if self._failure is not None else self._child.describe_end()
        return f"rank {self._rank} of this worker {how}"

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._child.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._child.kill()

    async def end(self) -> None:
        """Terminate it, and kill it after a timeout."""
        self._child.terminate()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._child.wait()
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        self._reading.cancel()
        self._child.close()

    async def _read(self) -> None:
        async for progress in self._child.progress():
            if isinstance(progress, Failed):
                self._failure = progress.message


def _spec(config: WorkerConfig, rank: int, leader: str) -> ProcessSpec:
    place = rank - config.ranks_here[0]
    rank_config = replace(
        config,
        engine=replace(config.engine, device=_device(config.engine.device, place)),
        worker_id=f"{config.worker_id}{rank_suffix(rank)}",
        port=0,
        uds=None,
        kv_port=config.kv_port + config.kv_ports_of_a_rank * place if config.kv_port else 0,
        registry=None,
        metrics_port=None,
        progress_fd=None,
        master_port=config.master_port if config.node_rank else 0,  # node 0's process listens there
    )
    # In our process group, so that a kill of the group ends all ranks.
    return ProcessSpec(rank_config.worker_id, _argv(rank_config, rank, leader), log_path=None, has_own_session=False)


def _argv(config: WorkerConfig, rank: int, leader: str) -> tuple[str, ...]:
    words = ("-m", "baton.worker.ranks", f"--rank={rank}", f"--leader={leader}", *log_settings().flags)
    return (sys.executable, "-P", *words, *flags_of(config))


def _device(device: str, place: int) -> str:
    """Return a rank's device: the first rank's for CPUs, consecutive GPU numbers of the node otherwise."""
    kind, _, number = device.partition(":")
    return device if kind == "cpu" else f"{kind}:{int(number or 0) + place}"
