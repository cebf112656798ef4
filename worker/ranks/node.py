"""A node of a worker other than its first: it runs the ranks that are there, until the worker ends."""

import asyncio
import logging
import signal

from baton.doctor.finding import require_fit
from baton.doctor.machine import examine_machine
from baton.engine.errors import EngineEnded
from baton.engine.execution.device import gpus_here
from baton.settings.names import host_port
from baton.worker.config import WorkerConfig
from baton.worker.device import require_gpus
from baton.worker.ranks.rank_process import RankProcess

logger = logging.getLogger(__name__)

END_TOGETHER_S = 5.0  # for the other ranks, after one has ended


async def run_node(config: WorkerConfig) -> None:
    """Run the node's ranks; return when the first rank has ended the worker, or at SIGTERM and SIGINT.

    These make the first rank drain the worker, if the ranks are connected to it. Raises EngineEnded if the worker fails
    or a rank is lost, OptionError if the ranks lack GPUs, and Unfit if a strict start finds the machine unfit.
    """
    leader = host_port(config.master_addr, config.master_port)
    ranks: list[RankProcess] = []
    stopping = asyncio.Event()

    def stop() -> None:
        stopping.set()
        for rank in ranks:
            rank.terminate()

    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop)
    await _check_machine(config)
    try:
        for number in config.ranks_here:
            ranks.append(await RankProcess.start(config, number, leader))
            if stopping.is_set():
                return
        logger.info("node %d runs %s of the worker at %s", config.node_rank, format_ranks(config.ranks_here), leader)
        ends = {asyncio.create_task(rank.wait()): rank for rank in ranks}
        ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if all(each.result() for each in ended):
            ended, _ = await asyncio.wait(ends, timeout=END_TOGETHER_S)
        failed = [ends[each].describe_end() for each in ended if not each.result()]
        if failed and not stopping.is_set():  # a signal may also end a rank before it can handle it
            raise EngineEnded(failed[0])
    finally:
        await asyncio.gather(*(rank.end() for rank in ranks))


async def _check_machine(config: WorkerConfig) -> None:
    engine = config.engine
    require_gpus(engine.device, config.ranks_per_node, gpus_here())
    if config.strict:
        pool_bytes = engine.kv_cache_memory_bytes and engine.kv_cache_memory_bytes * config.ranks_per_node
        require_fit(await asyncio.to_thread(examine_machine, pool_bytes))


def format_ranks(ranks: range) -> str:
    """Return consecutive ranks as text."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
