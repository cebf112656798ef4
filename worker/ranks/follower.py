"""The process of a follower rank: its model shard runs on a thread, and peers read its KV shard."""

import asyncio
import faulthandler
import logging
import signal
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import grpc

from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.parallel.rank0_model import Follower
from baton.kvtransfer.base import KVTransport, PoolIdentity
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.protos import rank_pb2_grpc
from baton.rpc.grpc_options import LOCAL_OPTIONS
from baton.worker.config import WorkerConfig
from baton.worker.ranks.fixed_group import FixedGroup, tensor_group
from baton.worker.ranks.rank_service import RankService
from baton.worker.ranks.ranks import Ranks

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0  # for the step in progress, after the other ranks have ended
CHECK_INTERVAL_S = 1.0  # between two checks of the current step's duration


class FollowerProcess:
    """One follower rank, from the first command to the end of its worker."""

    def __init__(self, config: WorkerConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._memory = SharedPool()
        self._membership = FixedGroup(config.tensor_parallel, rank)
        self._tensor = tensor_group(config, self._membership)
        self._follower: Follower | None = None
        self._thread: threading.Thread | None = None
        self._transport: KVTransport | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, socket: str) -> None:
        """Execute the first rank's commands, received on a Unix socket at this path, until the worker ends."""
        service = RankService(self._load)
        stopping = asyncio.ensure_future(_sigterm_without_leader(service))
        server = grpc.aio.server(options=LOCAL_OPTIONS)
        rank_pb2_grpc.add_RankServicer_to_server(service, server)
        server.add_insecure_port(f"unix:{socket}")  # in a directory that only our user may enter
        await server.start()
        watching = asyncio.create_task(self._watch())
        try:
            ends = {stopping, watching, self._failed, service.ended}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in (self._failed, watching):
                if each.done():
                    each.result()
        finally:
            self._tensor.leave()
            stopping.cancel()
            await service.close()
            await server.stop(0)
            if self._thread is not None:
                await asyncio.to_thread(self._thread.join, END_TIMEOUT_S)
            watching.cancel()
            if self._transport is not None:
                await self._transport.close()
            self._memory.close()

    async def _load(self, store: str) -> Ranks:
        config = self._config
        self._membership.begin(store)
        with ThreadPoolExecutor(1, "load") as loader:  # OpenMP's threads end with it, see worker/server.py
            follower = await asyncio.get_running_loop().run_in_executor(
                loader, lambda: Follower(config.engine, self._tensor, self._memory.allocate)
            )
        self._follower = follower
        identity = PoolIdentity(uuid.uuid4().hex, follower.fingerprint)
        device = follower.pool.device
        self._transport = create_transport(
            config.transport, identity, self._memory, config.host, config.kv_port, device
        )
        following = (follower, asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._follow, args=following, name="engine", daemon=True)
        self._thread.start()
        ranks = PartGroup(follower.kv_parts, config.tensor_parallel)
        return Ranks(self._transport, follower.pool, ranks, self._rank)

    def _follow(self, follower: Follower, loop: asyncio.AbstractEventLoop) -> None:
        try:
            follower.follow()
        except GroupBroken as broken:
            logger.debug("no more steps: %s", broken)  # the first rank ends too, which ends the stream
        except Exception as error:
            loop.call_soon_threadsafe(self._failed.set_exception, error)

    async def _watch(self) -> None:
        """Raise EngineEnded when a step takes too long. A process that hangs is ended as in `worker/watchdog.py`."""
        limit_s = self._config.longest_step_s
        try:
            while True:
                faulthandler.dump_traceback_later(limit_s, exit=True)
                await asyncio.sleep(min(CHECK_INTERVAL_S, limit_s / 10))
                if self._follower is not None and self._follower.turn_s > limit_s:
                    raise EngineEnded(f"this rank's current step has taken over {limit_s:g} s")
        finally:
            faulthandler.cancel_dump_traceback_later()


async def _sigterm_without_leader(service: RankService) -> None:
    """Return at SIGTERM, unless a first rank is connected: it may still drain requests. SIGINT is ignored."""
    stopping = asyncio.Event()

    def on_sigterm() -> None:
        if not service.is_followed:
            stopping.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    await stopping.wait()


async def run(config: WorkerConfig, rank: int, socket: str) -> None:
    """Serve until the worker ends."""
    await FollowerProcess(config, rank).serve(socket)
