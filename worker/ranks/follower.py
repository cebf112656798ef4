"""The process of a follower rank: its model shard runs on a thread, and peers read its KV shard."""

import asyncio
import faulthandler
import logging
import signal
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import grpc

from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.parallel.rank0_model import Follower
from baton.kvtransfer.base import KVTransport, PoolIdentity
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.process.entry import is_orphan
from baton.rpc.grpc_options import LOCAL_OPTIONS
from baton.rpc.tls import make_security
from baton.rpc.unix_sockets import unix_address
from baton.worker.adapters.own_thread import on_own_thread
from baton.worker.config import WorkerConfig
from baton.worker.kv.open_stores import open_tiers
from baton.worker.kv.rank_stores import RankStores
from baton.worker.ranks.fixed_group import FixedGroup, tensor_group
from baton.worker.ranks.hello import hello_of
from baton.worker.ranks.rank_commands import RankCommands
from baton.worker.ranks.rank_saver import RankSaver
from baton.worker.ranks.ranks import Ranks

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0  # for the load or the step in progress, after the other ranks have ended
CHECK_INTERVAL_S = 1.0  # between two checks of the current step's duration


class FollowerProcess:
    """One follower rank, from the first command to the end of its worker."""

    def __init__(self, config: WorkerConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._memory = SharedPool()
        self._membership = FixedGroup(config.tensor_parallel, rank)
        self._tensor = tensor_group(config, self._membership)
        self._loading: Future[Follower] | None = None
        self._follower: Follower | None = None
        self._thread: threading.Thread | None = None
        self._transport: KVTransport | None = None
        self._saver = RankSaver()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, leader: str) -> None:
        """Execute the commands of the first rank at the address `leader` until the worker ends."""
        hello = hello_of(self._config, self._rank)
        commands = RankCommands(hello, self._load, FollowerAdapters(self._loaded), self._saver)
        channel = self._channel(leader)
        following = asyncio.create_task(commands.follow(channel, leader, self._config.node_timeout_s))
        stopping = asyncio.ensure_future(_sigterm_to_end(commands, can_leave=self._config.node_rank > 0))
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({stopping, watching, self._failed, following}, return_when=asyncio.FIRST_COMPLETED)
            for each in (self._failed, watching, following):
                if each.done():
                    each.result()
        except Exception as error:
            await commands.report(error)
            raise
        finally:
            self._tensor.leave()
            stopping.cancel()
            await commands.close()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await channel.close(None)
            await self._saver.close()
            if self._loading is not None:
                await asyncio.to_thread(wait, (self._loading,), END_TIMEOUT_S)
            if self._thread is not None:
                await asyncio.to_thread(self._thread.join, END_TIMEOUT_S)
            watching.cancel()
            if self._transport is not None:
                await self._transport.close()
            self._memory.close()

    def _channel(self, leader: str) -> grpc.aio.Channel:
        if leader.startswith(unix_address("")):
            return grpc.aio.insecure_channel(leader, options=LOCAL_OPTIONS)
        config = self._config
        security = make_security(config.tls_cert, config.tls_key, config.tls_ca, config.tls_server_name)
        return security.channel(leader)

    async def _load(self, store: str) -> Ranks:
        config = self._config
        self._membership.begin(store)
        loader = ThreadPoolExecutor(1, "load")
        self._loading = loader.submit(Follower, config.engine, self._tensor, self._memory.allocate)
        loader.shutdown(wait=False)  # OpenMP's threads end with its thread, see worker/server.py
        self._follower = follower = await asyncio.wrap_future(self._loading)
        identity = PoolIdentity(uuid.uuid4().hex, follower.fingerprint)
        device = follower.pool.device
        self._transport = create_transport(
            config.transport, identity, self._memory, config.host, config.kv_port, device
        )
        following = (follower, asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._follow, args=following, name="engine", daemon=True)
        self._thread.start()
        ranks = PartGroup(follower.kv_parts, config.tensor_parallel)
        tiers = await asyncio.to_thread(open_tiers, config, follower.origin.fingerprint)
        self._saver.open(RankStores(follower.pool, tiers, ranks, self._rank))
        return Ranks(self._transport, follower.pool, ranks, self._rank)

    def _loaded(self) -> Follower:
        assert self._follower is not None, "a command has come before the shard was loaded"
        return self._follower

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


class FollowerAdapters:
    """The LoRA adapters of a follower's shard."""

    def __init__(self, follower: Callable[[], Follower]) -> None:
        self._follower = follower

    async def read(self, name: str, path: str, number: int) -> str:
        """Read an adapter on a thread of its own and return its digest. Raises an EngineError if it cannot be used."""
        read = await on_own_thread(self._follower().adapters.read, name, Path(path), number)
        return read.info.digest

    def drop(self, number: int) -> None:
        """Free an adapter's memory; see `Follower.drop_adapter`."""
        self._follower().drop_adapter(number)


async def _sigterm_to_end(commands: RankCommands, can_leave: bool) -> None:
    """Return at SIGTERM if no first rank is connected, or the parent process has ended. SIGINT is ignored.

    Otherwise the first rank decides: it drains the worker at its own SIGTERM or, if `can_leave`, at this one.
    """
    stopping = asyncio.Event()

    def on_sigterm() -> None:
        if not commands.is_followed or is_orphan():
            stopping.set()
        elif can_leave:
            commands.leave()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    await stopping.wait()


async def run(config: WorkerConfig, rank: int, leader: str) -> None:
    """Serve until the worker ends."""
    await FollowerProcess(config, rank).serve(leader)
