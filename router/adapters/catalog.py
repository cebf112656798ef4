"""The adapters of one served model, and their state at the workers.

1. `load` loads an adapter at all workers, or at none: what one of them refuses is unloaded at the others again.
2. Its name, path and digest enter the table, from which other routers learn of it within `INTERVAL_S`, or as soon as a
   request names it.
3. Each router loads all adapters of the table at workers that join later. A worker gets requests for an adapter only if
   it has reported contents with the digest of the table.
4. `unload` removes the adapter from the table, then from the workers, where running requests end as usual.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from baton.engine.errors import InvalidRequest
from baton.membership.registry.base import RegistryLost
from baton.router.adapters.adapter import MAX_ADAPTERS, Adapter, is_adapter_name
from baton.router.adapters.directory import AdapterDirectory
from baton.router.adapters.failures import LoadFailures
from baton.router.adapters.module import LoraModule
from baton.router.adapters.table import AdapterTable
from baton.router.adapters.worker_loads import load_at, load_at_all, problem_of, unload_at, unload_at_all
from baton.router.dispatch.first_worker import FirstWorker
from baton.router.errors import FieldError, NoWorker
from baton.router.workers.connection import WorkerConnection
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.pool import WorkerPool
from baton.rpc.status import NotFound, Unavailable

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # between two reads of a table that other routers may change
REFRESH_S = 0.1  # the same for requests with unknown names
NAME = "lora_name"  # the field of a request


class AdapterLoadFailed(InvalidRequest):
    """Some worker cannot load the adapter; the text has its reason."""


class AdapterCatalog:
    """The adapters of a model."""

    def __init__(
        self,
        pool: WorkerPool,
        table: AdapterTable,
        directory: AdapterDirectory | None,
        modules: Sequence[LoraModule],
        first_worker: FirstWorker,
        *,
        loads_on_use: bool = True,
    ) -> None:
        """`directory`: from which clients may load more; None: they may not. `modules`: loaded at the start.

        `loads_on_use`: whether a request's name may be that of an adapter in the directory.
        """
        self.table = table
        self._pool = pool
        self._first_worker = first_worker
        self._directory = directory
        self._loads_on_use = loads_on_use and directory is not None
        self._waiting = {module.name: module for module in modules}  # modules that no worker has loaded yet
        self._known: dict[str, Adapter] = {}
        self._removed: dict[str, Adapter] = {}  # unloaded adapters, the latest at the end
        self._loads: dict[str, asyncio.Task[Adapter]] = {}  # loads that requests wait for, by name
        self._failures = LoadFailures()
        self._turn = asyncio.Lock()  # held during a change of the table
        self._num_changes = 0  # changes of the table by this router
        self._read_s = 0.0  # time of the last read of the table

    @property
    def adapters(self) -> list[Adapter]:
        """The known adapters, by name."""
        return sorted(self._known.values(), key=lambda adapter: adapter.name)

    def get(self, name: str) -> Adapter | None:
        """Return a known adapter."""
        return self._known.get(name)

    def lists(self, name: str) -> bool:
        """Return whether an adapter is known, or a module that is to be loaded."""
        return name in self._known or name in self._waiting

    def is_in_directory(self, name: str) -> bool:
        """Return whether a request may name an adapter because it is in the directory. Accesses the file system."""
        if not self._loads_on_use or self._directory is None or not is_adapter_name(name):
            return False
        return self._directory.find(name) is not None

    async def find(self, name: str) -> Adapter | None:
        """Return the known adapter or module that a request names; None: there is none.

        In a deployment that scales to zero, the request waits for the first worker. Raises Unavailable if a module
        cannot be loaded.
        """
        if name in self._known or not is_adapter_name(name):
            return self._known.get(name)
        if self.table.is_shared and time.monotonic() > self._read_s + REFRESH_S:
            try:
                await self._refresh()
            except RegistryLost as error:
                if not self._read_s:
                    raise _unreachable(error) from error
            if name in self._known:
                return self._known[name]
        if (module := self._waiting.get(name)) is not None:
            return await self._found_module(module)
        return None

    async def find_new(self, name: str) -> Adapter | None:
        """Return the adapter that a request names, loaded from the directory; None: it is not there.

        In a deployment that scales to zero, the request waits for the first worker. Raises AdapterLoadFailed or
        NoWorker.
        """
        if not self._loads_on_use or self._directory is None or not is_adapter_name(name):
            return None
        path = await asyncio.to_thread(self._directory.find, name)
        if path is None:
            return None
        if (reason := self._failures.reason(name)) is not None:
            raise AdapterLoadFailed(reason)
        await self._first_worker.wait()
        if (task := self._loads.get(name)) is None:
            task = self._loads[name] = asyncio.create_task(self._load(name, path), name=f"adapter {name}")
            task.add_done_callback(lambda ended: self._end_load(name, ended))
        return await asyncio.shield(task)

    async def load(self, name: str, path: str) -> Adapter:
        """Load an adapter from the directory at all workers.

        Raises FieldError, AdapterLoadFailed, NoWorker, or Unavailable if the table cannot be reached.
        """
        if self._directory is None:
            raise NotFound("this server loads adapters only at its start; start it with --lora-dir to load more")
        await self._refresh_or_fail()
        if name in self._known:
            raise FieldError(NAME, f"The lora adapter '{name}' has already been loaded.")
        return await self._load(name, await asyncio.to_thread(self._directory.inside, path))

    async def unload(self, name: str) -> None:
        """Unload an adapter everywhere. Raises NotFound, or Unavailable if the table cannot be reached."""
        await self._refresh_or_fail()
        if name not in self._known and name not in self._waiting:
            raise NotFound(f"The lora adapter '{name}' cannot be found.")
        self._waiting.pop(name, None)
        await self._unload(name)

    async def run(self) -> None:
        """Load the modules, and keep all workers up to date, until cancelled."""
        try:
            while True:
                async with self._turn:
                    with suppress(RegistryLost):
                        await self._refresh()
                for module in list(self._waiting.values()):
                    with suppress(Unavailable):  # there is no worker yet
                        await self._load_module(module)
                await asyncio.gather(*map(self._update, self._workers()))
                for adapter in self.adapters:
                    await self._adopt_contents(adapter)
                described = [each.description for each in self._pool.reached]
                self._failures.clean({each.incarnation for each in described if each is not None}, self._waiting)
                await self._pool.wait_change(INTERVAL_S)
        finally:
            for task in self._loads.values():
                task.cancel()

    async def _load(self, name: str, path: str) -> Adapter:
        """Load an adapter at all workers, and enter it into the table."""
        async with self._turn:
            if (known := self._known.get(name)) is not None:
                return known
            if len(self._known) >= MAX_ADAPTERS:
                text = f"{MAX_ADAPTERS} adapters are loaded, which is the maximum; unload another one first"
                raise FieldError(NAME, text)
            workers = self._workers()
            if not workers:
                raise NoWorker("no worker is ready to load the adapter")
            self._removed.pop(name, None)
            loaded = await load_at_all(workers, name, path, self._known)
            new = [each.connection for each in loaded if each.is_new]
            if (problem := problem_of(name, path, loaded)) is not None:
                await unload_at_all(new, name)
                if self._failures.note(name, problem):
                    logger.error("the adapter %s is not served: %s", name, problem)
                raise AdapterLoadFailed(problem)
            if not loaded:
                raise NoWorker(f"all workers were lost while they loaded the adapter {name}")
            adapter = Adapter(name, path, loaded[0].digest, int(time.time()))
            try:
                agreed = await self.table.add(adapter)
            except RegistryLost as error:
                await unload_at_all(new, name)
                raise _unreachable(error) from error
            self._failures.forget(name)
            self._replace({**self._known, name: agreed})
            if agreed.digest != adapter.digest:
                raise FieldError(NAME, f"The lora adapter '{name}' has already been loaded, with other contents.")
        logger.info("the adapter %s of %s was loaded at %d workers", name, path, len(loaded))
        return agreed

    async def _unload(self, name: str) -> None:
        """Remove an adapter from the table, then from the workers."""
        async with self._turn:
            try:
                await self.table.remove(name)
            except RegistryLost as error:
                raise _unreachable(error) from error
            self._replace({key: adapter for key, adapter in self._known.items() if key != name})
            await unload_at_all(self._workers(), name)
        logger.info("the adapter %s was unloaded", name)

    async def _found_module(self, module: LoraModule) -> Adapter:
        """Return a module that no worker has loaded yet, once it is loaded. Raises Unavailable."""
        await self._first_worker.wait()
        await self._load_module(module)
        if (adapter := self._known.get(module.name)) is not None:
            return adapter
        reason = self._failures.last_reason(module.name) or "no worker is ready"
        raise Unavailable(f"the adapter {module.name} is not loaded yet: {reason}")

    def _end_load(self, name: str, task: asyncio.Task[Adapter]) -> None:
        self._loads.pop(name, None)
        if not task.cancelled():
            task.exception()  # retrieved, though all requests for it may have ended

    async def _load_module(self, module: LoraModule) -> None:
        """Load a module once there are workers; it is tried again until it is loaded."""
        if self._failures.reason(module.name) is not None or not self._workers():
            return
        known = self._known.get(module.name)
        if known is not None and known.path != module.path:  # of an earlier start, with other options
            await self._unload(module.name)
        try:
            await self._load(module.name, module.path)
        except AdapterLoadFailed:
            return
        except InvalidRequest as error:
            if self._failures.note(module.name, str(error)):
                logger.error("the adapter %s is not served: %s", module.name, error)
            return
        self._waiting.pop(module.name, None)

    async def _update(self, connection: WorkerConnection) -> None:
        """Load the adapters that a worker lacks, and unload those that were removed while it was away."""
        for name, digest in list(connection.load.adapters.items()):
            removed = self._removed.get(name)
            if removed is not None and removed.digest == digest and name not in self._known:
                await unload_at(connection, name)
        for name in list(self._known):
            adapter = self._known.get(name)  # a load before this one may have taken long
            if adapter is None or connection.description is None:
                continue
            if connection.load.adapters.get(adapter.name) == adapter.digest:
                continue
            incarnation = connection.description.incarnation
            if self._failures.reason(adapter.name, incarnation) is not None:
                continue
            loaded = await load_at(connection, adapter.name, adapter.path)
            reason = loaded.reason
            if loaded.digest not in ("", adapter.digest):
                reason = f"{adapter.path} has other contents there (digest {loaded.digest}, not {adapter.digest})"
            if self._known.get(adapter.name) != adapter:
                await unload_at(connection, adapter.name)  # it was unloaded meanwhile
            elif reason and self._failures.note(adapter.name, reason, incarnation):
                logger.error("%s gets no requests for the adapter %s: %s", loaded.worker_id, adapter.name, reason)
                if loaded.digest:
                    await self._read_elsewhere(adapter)

    async def _read_elsewhere(self, adapter: Adapter) -> None:
        """Let workers with the table's contents read the files, which one of them has found changed.

        Those that find new contents, too, have these from then on.
        """
        others = [each for each in self._workers() if each.load.adapters.get(adapter.name) == adapter.digest]
        await asyncio.gather(*(load_at(each, adapter.name, adapter.path) for each in others))

    async def _adopt_contents(self, adapter: Adapter) -> None:
        """If all workers have other contents than the table, those of replaced files, enter them there."""
        digests = {each.load.adapters.get(adapter.name, "") for each in self._workers()}
        if len(digests) != 1 or digests & {"", adapter.digest}:
            return
        [digest] = digests
        async with self._turn:
            with suppress(RegistryLost):
                await self._refresh()
                if self._known.get(adapter.name) != adapter:
                    return
                await self.table.remove(adapter.name)
                agreed = await self.table.add(replace(adapter, digest=digest))
                self._replace({**self._known, adapter.name: agreed})
                logger.warning("all workers have new contents of the adapter %s: %s", adapter.name, agreed.digest)

    async def _refresh(self) -> None:
        """Read the table. Raises RegistryLost."""
        if not self.table.is_shared and self._read_s:
            return
        num_changes = self._num_changes
        found = await self.table.read()
        self._read_s = time.monotonic()
        if num_changes == self._num_changes:  # otherwise it may lack a change of this router's own
            self._replace(found)

    async def _refresh_or_fail(self) -> None:
        try:
            await self._refresh()
        except RegistryLost as error:
            raise _unreachable(error) from error

    def _replace(self, adapters: Mapping[str, Adapter]) -> None:
        """Replace the known adapters, and remember those that were removed."""
        for name, adapter in self._known.items():
            if name not in adapters:
                self._removed.pop(name, None)
                self._removed[name] = adapter
        while len(self._removed) > MAX_ADAPTERS:
            del self._removed[next(iter(self._removed))]
        self._known = dict(adapters)
        self._num_changes += 1

    def _workers(self) -> list[WorkerConnection]:
        """Return the workers that have reported their adapters, draining ones included."""
        return [each for each in self._pool.reached if each.state is not ConnectionState.CONNECTING]


def _unreachable(error: RegistryLost) -> Unavailable:
    return Unavailable(f"the list of adapters cannot be reached: {error}")
