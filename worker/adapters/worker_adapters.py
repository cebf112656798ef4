"""Loading and unloading of LoRA adapters on all ranks of a worker.

1. The first rank gives the adapter a number. All ranks read its files, each on a separate thread, while steps go on.
2. If all have read the same contents, the first rank's engine inserts the adapter between two steps. From then on
   requests may name it, and batches name it by its number. Otherwise all ranks drop it.
3. Adapters may leave memory (see `AdapterRegistry`): then all ranks drop the matrices. When a request needs them, all
   ranks read the files again, and the engine lets the request start if the contents are the same.
4. After an unload, the engine drops the adapter when its last request has ended, and the other ranks then do too.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from baton.engine.errors import EngineEnded, EngineError, InvalidAdapter
from baton.engine.lora.info import AdapterInfo
from baton.engine.lora.registered import ReadAdapter, RegisteredAdapter
from baton.kvtransfer.errors import PeerLost
from baton.protos import worker_pb2
from baton.worker.adapters.own_thread import on_own_thread
from baton.worker.engine_host import EngineHost
from baton.worker.ranks.remote_rank import RemoteRank

logger = logging.getLogger(__name__)


class WorkerAdapters:
    """The adapters of a worker's engine and of its other ranks; used from the event loop."""

    def __init__(self, host: EngineHost, followers: Sequence[RemoteRank] = ()) -> None:
        self._host = host
        self._registry = host.adapters
        self._followers = followers
        self._changing = asyncio.Lock()  # one change at a time, so that a load needs the memory of one adapter
        self._listed = worker_pb2.AdapterList()
        self._loads: set[asyncio.Task[AdapterInfo]] = set()
        self._reads: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._registry.reader = self._on_wanted
        if followers:
            self._registry.on_removed = self._on_removed

    @property
    def limits(self) -> worker_pb2.AdapterLimits | None:
        """Limits of the adapters; None if they are not enabled."""
        config = self._registry.config
        if not config.enabled:
            return None
        return worker_pb2.AdapterLimits(
            max_loras=config.max_loras, max_lora_rank=config.max_rank, max_cpu_loras=config.max_cpu_loras
        )

    def list(self) -> worker_pb2.AdapterList:
        """Return the loaded adapters; see Adapters. It is made once a change, as there may be a thousand."""
        return self._listed

    async def load(self, name: str, path: str) -> worker_pb2.Adapter:
        """Load an adapter from a directory; no-op if it is loaded with the same contents.

        It goes on if the caller is cancelled. Raises InvalidAdapter, AdapterConflict, AdapterLimit or AdaptersDisabled,
        and EngineEnded.
        """
        loading = asyncio.create_task(self._load(name, path), name=f"adapter {name}")
        self._loads.add(loading)
        loading.add_done_callback(self._end_load)
        return adapter_to_proto(await asyncio.shield(loading))

    async def _load(self, name: str, path: str) -> AdapterInfo:
        async with self._changing:
            read = await self._read(name, Path(path))
            info = await self._host.call(lambda engine: engine.adapters.insert(read))
            await self._note()
        logger.info("the LoRA adapter %s of %s is loaded, %d bytes", name, path, info.num_bytes)
        return info

    def _end_load(self, loading: "asyncio.Task[AdapterInfo]") -> None:
        self._loads.discard(loading)
        if not loading.cancelled():
            loading.exception()  # retrieved: its caller may have gone

    async def unload(self, name: str) -> None:
        """Refuse new requests for an adapter; running ones go on with it. Raises UnknownAdapter."""
        async with self._changing:
            await self._host.call(lambda engine: engine.adapters.unload(name))
            await self._note()
        logger.info("the LoRA adapter %s is unloaded", name)

    def _on_wanted(self, adapter: RegisteredAdapter) -> None:
        """Read an adapter again; called on the engine's thread."""
        self._loop.call_soon_threadsafe(self._begin_read, adapter)

    def _begin_read(self, adapter: RegisteredAdapter) -> None:
        reading = asyncio.create_task(self._read_again(adapter), name=f"adapter {adapter.info.name}")
        self._reads.add(reading)
        reading.add_done_callback(self._reads.discard)

    async def _read_again(self, adapter: RegisteredAdapter) -> None:
        name, number = adapter.info.name, adapter.number
        with suppress(EngineEnded):  # so has the request
            try:
                async with self._changing:
                    read = await self._read(name, adapter.path)
            except EngineError as error:
                failure = error
                await self._host.call(lambda engine: engine.adapters.fail(number, failure))
            else:
                await self._host.call(lambda engine: engine.adapters.provide(number, read))
            await self._note()

    async def _read(self, name: str, path: Path) -> ReadAdapter:
        """Read an adapter on all ranks. Raises InvalidAdapter or AdaptersDisabled, and EngineEnded."""
        read = await on_own_thread(self._registry.read, name, path, self._registry.next_number())
        try:
            await self._read_elsewhere(read, str(path))
        except EngineError:
            await self._host.call(lambda engine: engine.adapters.drop(read.number))
            raise
        return read

    async def _read_elsewhere(self, read: ReadAdapter, path: str) -> None:
        """Let the other ranks read the same files.

        Raises InvalidAdapter if they are not the same or not there, EngineEnded if a rank is lost.
        """
        reading = (each.read_adapter(read.number, read.info.name, path) for each in self._followers)
        try:
            results = await asyncio.gather(*reading)
        except PeerLost as error:
            raise EngineEnded(str(error)) from error
        for follower, result in zip(self._followers, results, strict=True):
            if result.error:
                raise InvalidAdapter(f"rank {follower.rank} of this worker: {result.error}")
            if result.digest != read.info.digest:
                raise InvalidAdapter(
                    f"{path} has other contents on the node of rank {follower.rank} than on that of rank 0; copy the "
                    "same files to all nodes"
                )

    async def _note(self) -> None:
        infos = await self._host.call(lambda engine: engine.adapters.infos())
        self._listed = worker_pb2.AdapterList(adapters=map(adapter_to_proto, infos))

    def _on_removed(self, number: int) -> None:
        """Drop an adapter on the other ranks; called on the engine's thread."""
        self._loop.call_soon_threadsafe(self._drop, number)

    def _drop(self, number: int) -> None:
        for follower in self._followers:
            try:
                follower.drop_adapter(number)
            except PeerLost as error:  # the worker ends
                logger.debug("an adapter was not dropped: %s", error)


def adapter_to_proto(info: AdapterInfo) -> worker_pb2.Adapter:
    """Return the message of an adapter."""
    return worker_pb2.Adapter(name=info.name, digest=info.digest, rank=info.rank, num_bytes=info.num_bytes)
