"""A node of a worker other than its first: it runs the ranks that are there, until the worker ends."""

import asyncio
import logging
import signal

from baton.engine.errors import EngineEnded
from baton.settings.names import host_port
from baton.worker.config import WorkerConfig
from baton.worker.ranks.rank_process import RankProcess

logger = logging.getLogger(__name__)

END_TOGETHER_S = 5.0  # for the other ranks, after one has ended


async def run_node(config: WorkerConfig) -> None:
    """Run the node's ranks; return when the first rank has ended the worker. Raises EngineEnded if a rank is lost.

    SIGTERM and SIGINT make the first rank drain the worker, if the ranks are connected to it.
    """
    leader = host_port(config.master_addr, config.master_port)
    ranks: list[RankProcess] = []

    def terminate() -> None:
        for rank in ranks:
            rank.terminate()

    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, terminate)
    try:
        for number in config.ranks_here:
            started = await RankProcess.start(config, number, leader)
            ranks.append(started)
        logger.info("node %d runs %s of the worker at %s", config.node_rank, format_ranks(config.ranks_here), leader)
        ends = {asyncio.create_task(rank.wait()): rank for rank in ranks}
        [ended, *_], _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not ended.result():
            raise EngineEnded(ends[ended].describe_end())
        await asyncio.wait(ends, timeout=END_TOGETHER_S)
    finally:
        await asyncio.gather(*(rank.end() for rank in ranks))


def format_ranks(ranks: range) -> str:
    """Return consecutive ranks as text."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
