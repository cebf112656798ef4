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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from baton.engine.errors import InvalidRequest
from baton.membership.registry.base import RegistryLost
from baton.router.adapters.adapter import MAX_ADAPTERS, Adapter, is_adapter_name
from baton.router.adapters.directory import AdapterDirectory
from baton.router.adapters.module import LoraModule
from baton.router.adapters.table import AdapterTable
from baton.router.adapters.worker_loads import Loaded, load_at, load_at_all, unload_at, unload_at_all
from baton.router.errors import FieldError, NoWorker
from baton.router.workers.connection import WorkerConnection
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.pool import WorkerPool
from baton.rpc.status import NotFound, Unavailable

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # between two reads of a table that other routers may change
REFRESH_S = 0.1  # the same for requests with unknown names
RETRY_S = 5.0  # after a failure at a worker
NAME = "lora_name"  # the field of a request


class AdapterLoadFailed(InvalidRequest):
    """Some worker cannot load the adapter; the text has its reason."""


@dataclass(slots=True)
class Failure:
    """A failure to load an adapter at one incarnation of a worker."""

    reason: str
    failed_s: float  # monotonic time


@dataclass(slots=True)
class AdapterCatalog:
    """The adapters of a model."""

    pool: WorkerPool
    table: AdapterTable
    directory: AdapterDirectory | None  # None: only modules
    modules: Sequence[LoraModule] = ()  # loaded at the start
    _known: dict[str, Adapter] = field(default_factory=dict)
    _removed: dict[str, None] = field(default_factory=dict)  # names that were unloaded, the last ones at the end
    _waiting: dict[str, LoraModule] = field(default_factory=dict)  # modules that no worker has loaded yet
    _loads: dict[str, "asyncio.Task[Adapter]"] = field(default_factory=dict)  # of requests, by name
    _failures: dict[tuple[str, str], Failure] = field(default_factory=dict)  # by incarnation (empty: all) and name
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # of changes of the table
    _read_s: float = 0.0  # time of the last read of the table

    @property
    def adapters(self) -> list[Adapter]:
        """The known adapters, by name."""
        return sorted(self._known.values(), key=lambda adapter: adapter.name)

    def get(self, name: str) -> Adapter | None:
        """Return a known adapter."""
        return self._known.get(name)

    def has(self, name: str) -> bool:
        """Return whether a request may name this adapter. Accesses the file system."""
        if name in self._known or name in self._waiting:
            return True
        return self.directory is not None and is_adapter_name(name) and self.directory.find(name) is not None

    async def find(self, name: str) -> Adapter | None:
        """Return the adapter that a request names, loaded from the directory if it is there; None: there is none.

        Raises AdapterLoadFailed, NoWorker, or Unavailable while a module is being loaded.
        """
        if (known := self._known.get(name)) is not None:
            return known
        if not is_adapter_name(name):
            return None
        if self.table.is_shared and time.monotonic() > self._read_s + REFRESH_S:
            with suppress(RegistryLost):
                await self._refresh()
            if (known := self._known.get(name)) is not None:
                return known
        if name in self._waiting:
            raise Unavailable(f"the adapter {name} is not loaded yet{self._reason(name)}")
        path = await asyncio.to_thread(self.directory.find, name) if self.directory is not None else None
        if path is None:
            return None
        if self._has_failed("", name):
            raise AdapterLoadFailed(self._failures["", name].reason)
        if (task := self._loads.get(name)) is None:
            task = self._loads[name] = asyncio.create_task(self._load(name, path), name=f"adapter {name}")
            task.add_done_callback(lambda _: self._loads.pop(name, None))
        return await asyncio.shield(task)

    async def load(self, name: str, path: str) -> Adapter:
        """Load an adapter from the directory at all workers.

        Raises FieldError, AdapterLoadFailed, NoWorker, or Unavailable if the table cannot be reached.
        """
        if self.directory is None:
            raise NotFound("this server loads adapters only at its start; start it with --lora-dir to load more")
        await self._refresh_or_fail()
        if name in self._known:
            raise FieldError(NAME, f"The lora adapter '{name}' has already been loaded.")
        return await self._load(name, await asyncio.to_thread(self.directory.inside, path))

    async def unload(self, name: str) -> None:
        """Unload an adapter everywhere. Raises NotFound, or Unavailable if the table cannot be reached."""
        async with self._turn:
            await self._refresh_or_fail()
            if name not in self._known and name not in self._waiting:
                raise NotFound(f"The lora adapter '{name}' cannot be found.")
            try:
                await self.table.remove(name)
            except RegistryLost as error:
                raise Unavailable(f"the list of adapters cannot be reached: {error}") from error
            self._waiting.pop(name, None)
            self._known.pop(name, None)
            self._note_removed([name])
            await unload_at_all(self._workers(), name)
        logger.info("the adapter %s was unloaded", name)

    async def run(self) -> None:
        """Load the modules, and keep all workers up to date, until cancelled."""
        self._waiting = {module.name: module for module in self.modules}
        while True:
            async with self._turn:
                with suppress(RegistryLost):
                    await self._refresh()
            for module in list(self._waiting.values()):
                with suppress(Unavailable):  # there is no worker yet
                    await self._load_module(module)
            await asyncio.gather(*map(self._update, self._workers()))
            self._forget_failures()
            await self.pool.wait_change(INTERVAL_S)

    async def _load(self, name: str, path: str) -> Adapter:
        """Load an adapter at all workers, and enter it into the table."""
        async with self._turn:
            if (known := self._known.get(name)) is not None:
                return known
            if len(self._known) >= MAX_ADAPTERS:
                raise FieldError(
                    NAME, f"{MAX_ADAPTERS} adapters are loaded, as many as may be; unload another one first"
                )
            workers = self._workers()
            if not workers:
                raise NoWorker("no worker is ready to load the adapter")
            self._removed.pop(name, None)
            loaded = await load_at_all(workers, name, path)
            if (problem := _problem(name, path, loaded)) is not None:
                await unload_at_all([each.connection for each in loaded if each.is_new], name)
                if self._note_failure("", name, problem):
                    logger.error("the adapter %s is not served: %s", name, problem)
                raise AdapterLoadFailed(problem)
            if not loaded:
                raise NoWorker(f"all workers were lost while they loaded the adapter {name}")
            adapter = Adapter(name, path, loaded[0].digest, int(time.time()))
            try:
                agreed = await self.table.add(adapter)
            except RegistryLost as error:
                await unload_at_all([each.connection for each in loaded if each.is_new], name)
                raise Unavailable(f"the list of adapters cannot be reached: {error}") from error
            self._known[name] = agreed
            if agreed.digest != adapter.digest:
                raise FieldError(NAME, f"The lora adapter '{name}' has already been loaded, with other contents.")
        logger.info("the adapter %s of %s was loaded at %d workers", name, path, len(loaded))
        return agreed

    async def _load_module(self, module: LoraModule) -> None:
        """Load a module once there are workers; it is tried again until it is loaded."""
        if self._has_failed("", module.name):
            return
        if module.name not in self._known:
            try:
                await self._load(module.name, module.path)
            except InvalidRequest as error:
                if self._note_failure("", module.name, str(error)):
                    logger.error("the adapter %s is not served: %s", module.name, error)
                return
        self._waiting.pop(module.name, None)

    async def _update(self, connection: WorkerConnection) -> None:
        """Load the adapters that a worker lacks, and unload those that were removed while it was away."""
        for name in list(connection.load.adapters):
            if name in self._removed and name not in self._known:
                await unload_at(connection, name)
        for adapter in self.adapters:
            if connection.load.adapters.get(adapter.name) == adapter.digest or connection.description is None:
                continue
            incarnation = connection.description.incarnation
            if self._has_failed(incarnation, adapter.name):
                continue
            loaded = await load_at(connection, adapter.name, adapter.path)
            if self._known.get(adapter.name) != adapter:
                await unload_at(connection, adapter.name)  # it was unloaded meanwhile
            elif (reason := _objection(adapter, loaded)) and self._note_failure(incarnation, adapter.name, reason):
                logger.error("%s gets no requests for the adapter %s: %s", loaded.worker_id, adapter.name, reason)

    async def _refresh(self) -> None:
        """Read the table. Raises RegistryLost."""
        if not self.table.is_shared and self._read_s:
            return
        found = await self.table.read()
        self._read_s = time.monotonic()
        self._note_removed([name for name in self._known if name not in found])
        self._known = found

    async def _refresh_or_fail(self) -> None:
        try:
            await self._refresh()
        except RegistryLost as error:
            raise Unavailable(f"the list of adapters cannot be reached: {error}") from error

    def _workers(self) -> list[WorkerConnection]:
        """Return the workers that may have adapters, draining ones included."""
        return [each for each in self.pool.reached if each.state is not ConnectionState.CONNECTING]

    def _note_removed(self, names: Sequence[str]) -> None:
        for name in names:
            self._removed[name] = None
        while len(self._removed) > MAX_ADAPTERS:
            del self._removed[next(iter(self._removed))]

    def _has_failed(self, incarnation: str, name: str) -> bool:
        """Return whether the last load failed a short while ago."""
        failure = self._failures.get((incarnation, name))
        return failure is not None and time.monotonic() < failure.failed_s + RETRY_S

    def _note_failure(self, incarnation: str, name: str, reason: str) -> bool:
        """Note a failure; return whether it is new."""
        last = self._failures.get((incarnation, name))
        self._failures[incarnation, name] = Failure(reason, time.monotonic())
        return last is None or last.reason != reason

    def _forget_failures(self) -> None:
        """Forget failures at workers that have ended, and those that are over."""
        incarnations = {each.description.incarnation for each in self.pool.reached if each.description is not None}
        self._failures = {
            key: each
            for key, each in self._failures.items()
            if key[0] in incarnations or key[1] in self._waiting or self._has_failed(*key)
        }

    def _reason(self, name: str) -> str:
        failure = self._failures.get(("", name))
        return "" if failure is None else f": {failure.reason}"


def _objection(adapter: Adapter, loaded: Loaded) -> str:
    if not loaded.digest:
        return loaded.reason
    if loaded.digest == adapter.digest:
        return ""
    return f"{adapter.path} has other contents there (digest {loaded.digest}, not {adapter.digest})"


def _problem(name: str, path: str, loaded: Sequence[Loaded]) -> str | None:
    """Return why an adapter cannot be served; None: it can."""
    for each in loaded:
        if each.reason:
            return f"worker {each.worker_id} cannot load the adapter {name}: {each.reason}"
    by_digest: dict[str, list[str]] = {}
    for each in loaded:
        by_digest.setdefault(each.digest, []).append(each.worker_id)
    if len(by_digest) < 2:
        return None
    shown = "; ".join(f"{digest} at {', '.join(ids[:4])}" for digest, ids in list(by_digest.items())[:4])
    return f"{path} has different contents at the workers (digests: {shown}); copy the same adapter to all of them"
