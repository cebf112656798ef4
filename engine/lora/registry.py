"""Adapters that an engine has registered, by name, and those of them that are in memory.

1. `read` reads an adapter's files, and `insert` registers it: requests may name it until `unload`.
2. If memory is full, the least popular adapter leaves it, but none that has a place in the batch.
3. A request for an adapter that is not in memory waits, and holds up no other. The adapter is read again: its digest
   must be the registered one. Otherwise its requests fail, and it is registered no longer.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from baton.engine.checkpoint.json_object import shown
from baton.engine.errors import (
    AdapterConflict,
    AdapterLimit,
    AdaptersDisabled,
    EngineError,
    InvalidAdapter,
    UnknownAdapter,
)
from baton.engine.lora.adapted_layers import AdaptedLayers
from baton.engine.lora.adapter_files import read_adapter
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.info import AdapterInfo
from baton.engine.lora.low_rank import low_ranks
from baton.engine.lora.memory import AdapterMemory
from baton.engine.lora.registered import ReadAdapter, RegisteredAdapter
from baton.engine.lora.row_order import with_adjacent_pairs
from baton.engine.lora.use import AdapterUse
from baton.engine.request import Request

logger = logging.getLogger(__name__)

MAX_NAME_CHARS = 256
MAX_REGISTERED = 1000

Reader = Callable[[RegisteredAdapter], None]


class AdapterRegistry:
    """Registered adapters. All calls but `next_number` and `read` must come from the engine's thread."""

    def __init__(
        self,
        config: LoraConfig,
        adapted: AdaptedLayers | None,
        on_removed: Callable[[int], None] = lambda _: None,
        max_registered: int = MAX_REGISTERED,
    ) -> None:
        """adapted: of the model; None if adapters are not enabled. on_removed: called with the numbers of matrices that
        have been dropped.
        """
        self.config = config
        self.memory = AdapterMemory(config.max_cpu_loras)
        self.use = AdapterUse(config.max_loras, self.memory, self._on_missing, self._on_unused)
        self.reader: Reader = self._read_again  # reads an adapter, then calls `provide` or `fail`
        self.on_removed = on_removed
        self._adapted = adapted
        self._max_registered = max_registered
        self._numbers = itertools.count(1)
        self._by_name: dict[str, RegisteredAdapter] = {}
        self._by_number: dict[int, RegisteredAdapter] = {}  # also those without a name, which requests still use
        self._failures: dict[int, EngineError] = {}  # of reading, by the adapter's number
        self._read_s = 0.0  # of the last adapter that was read again

    @property
    def is_enabled(self) -> bool:
        """Whether adapters can be loaded."""
        return self._adapted is not None

    def next_number(self) -> int:
        """Return a number that was never used before; may be called on any thread."""
        return next(self._numbers)

    def read(self, name: str, path: Path, number: int | None = None) -> ReadAdapter:
        """Read an adapter's files; may be called on any thread, and takes as long as the disk.

        number: of the matrices, as given to other ranks. The result must be inserted, provided or dropped. Raises
        InvalidAdapter, AdaptersDisabled, or EngineError if memory is short.
        """
        if self._adapted is None:
            raise AdaptersDisabled("this worker was started without LoRA adapters; start it with --enable-lora")
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise InvalidAdapter(
                f"the name of an adapter is {shown(name)}, but must have 1 to {MAX_NAME_CHARS} printable characters"
            )
        try:
            return self._read(self._adapted, name, path, self.next_number() if number is None else number)
        except (MemoryError, OSError, RuntimeError) as error:  # such as a lack of memory, which torch reports so
            raise EngineError(f"{path} cannot be loaded: {type(error).__name__}: {shown(str(error))}") from error

    def _read(self, adapted: AdaptedLayers, name: str, path: Path, number: int) -> ReadAdapter:
        started_s = time.perf_counter()
        files, dtype = read_adapter(path, self.config.max_rank, adapted.model), adapted.dtype
        targets = sorted({module.rpartition(".")[2] for module in files.modules})
        info = AdapterInfo(
            name, files.digest(dtype), files.rank, files.num_bytes, files.base_model, target_modules=tuple(targets)
        )
        if adapted.paired_head_dim is not None:
            files = with_adjacent_pairs(files, adapted.paired_head_dim)
        factors = adapted.dora.of(files, info.digest)
        adapted.adapters.add(number, low_ranks(files, adapted.sources, dtype, factors))
        return ReadAdapter(number, info, path, time.perf_counter() - started_s)

    def insert(self, read: ReadAdapter) -> AdapterInfo:
        """Let requests name an adapter that was read; no-op if one with the same contents is registered.

        Otherwise it is dropped and raises AdapterConflict, if another one has its name, or AdapterLimit.
        """
        name, known = read.info.name, self._by_name.get(read.info.name)
        if known is not None and known.info.digest != read.info.digest:
            self.drop(read.number)
            raise AdapterConflict(f"a LoRA adapter {shown(name)} with other contents is loaded; unload it first")
        if known is None and len(self._by_number) >= self._max_registered:
            self.drop(read.number)
            raise AdapterLimit(
                f"{self._max_registered} LoRA adapters are loaded or still in use, which is the maximum: unload one"
            )
        adapter = RegisteredAdapter(read.number, read.info, read.path) if known is None else known
        self._by_name[name] = self._by_number[adapter.number] = replace(adapter, path=read.path)
        self._put(adapter.number, read)
        return adapter.info

    def _put(self, number: int, read: ReadAdapter) -> None:
        """Keep the matrices of a registered adapter unless they are there, or all others in memory have a place."""
        is_there = number in self.memory or self.memory.is_reading(number)
        if is_there or not self._make_room(lambda each: not self.use.has_place(each)):
            self.drop(read.number)
        else:
            self.memory.put(number, read.number)

    def _make_room(self, may_leave: Callable[[int], bool]) -> bool:
        """Drop the matrices of adapters that may leave memory until there is room; return whether there is."""
        while not self.memory.has_room:
            unused = self.memory.victim(lambda each: may_leave(each) and not self.use.is_used(each))
            victim = self.memory.victim(may_leave) if unused is None else unused
            if victim is None:
                return False
            self._evict(victim)
        return True

    def _evict(self, number: int) -> None:
        matrices = self.memory.remove(number)
        if matrices is not None:
            self.drop(matrices)

    def drop(self, number: int) -> None:
        """Drop matrices that no batch uses; no-op if they were not read."""
        if self._adapted is not None:
            self._adapted.adapters.remove(number)
            self.on_removed(number)

    def load(self, name: str, path: Path) -> AdapterInfo:
        """Read and insert an adapter; see there."""
        return self.insert(self.read(name, path))

    def unload(self, name: str) -> AdapterInfo:
        """Refuse new requests for an adapter; it is dropped when its last request has ended. Raises UnknownAdapter."""
        adapter = self._by_name.pop(name, None)
        if adapter is None:
            raise UnknownAdapter(f"no LoRA adapter {shown(name)} is loaded")
        self._on_unused(adapter.number)
        return adapter.info

    def get(self, name: str) -> AdapterInfo | None:
        """Return a registered adapter."""
        adapter = self._by_name.get(name)
        return None if adapter is None else adapter.info

    def infos(self) -> list[AdapterInfo]:
        """Return all registered adapters, by name."""
        return [adapter.info for _, adapter in sorted(self._by_name.items())]

    @property
    def load_s(self) -> float:
        """Seconds of the last copy of an adapter to the device, on a CPU those to read it again; 0: there was none."""
        copy_s = self._adapted.adapters.load_s if self._adapted is not None else 0.0
        return copy_s or self._read_s

    def resident(self) -> list[str]:
        """Return the names of adapters that a step can use without a copy to the device."""
        owners, matrices = self.memory.owners(), self.resident_numbers()
        numbers = {owners[each] for each in matrices if each in owners}
        return [name for name, adapter in sorted(self._by_name.items()) if adapter.number in numbers]

    def resident_numbers(self) -> frozenset[int]:
        """Return the numbers of matrices that a step can use without a copy, also of adapters without a name."""
        return self._adapted.adapters.resident() if self._adapted is not None else frozenset()

    def resolve(self, request: Request) -> None:
        """Set which registered adapter a new request uses.

        Raises UnknownAdapter if there is none of its name, or if the request expects other contents.
        """
        if request.adapter is None:
            return
        adapter = self._by_name.get(request.adapter)
        if adapter is None:
            raise UnknownAdapter(f"no LoRA adapter {shown(request.adapter)} is loaded")
        if request.adapter_digest not in ("", adapter.info.digest):
            raise UnknownAdapter(
                f"the LoRA adapter {shown(request.adapter)} is loaded with the contents {adapter.info.digest}, but the "
                f"request needs {shown(request.adapter_digest)}; load the same files on all workers"
            )
        if not request.adapter_digest:
            request.adapter_digest = adapter.info.digest
            request.adapter_start = None
            request.block_hashes.clear()  # those without a digest match no block
        request.adapter_number = adapter.number

    def provide(self, number: int, read: ReadAdapter) -> None:
        """Take the matrices of an adapter that `reader` has read. Other contents than the registered ones fail."""
        self.memory.end(number)
        adapter = self._by_number.get(number)
        if adapter is None:  # it was unloaded meanwhile
            self.drop(read.number)
            return
        try:
            adapter.check_unchanged(read)
        except UnknownAdapter as error:
            self.drop(read.number)
            self._fail(adapter, error)
        else:
            self._read_s = read.read_s
            self.memory.put(number, read.number)

    def fail(self, number: int, error: EngineError) -> None:
        """Note that an adapter could not be read again; its requests fail, and it is registered no longer."""
        self.memory.end(number)
        if (adapter := self._by_number.get(number)) is not None:
            self._fail(adapter, adapter.unreadable(error))

    def _fail(self, adapter: RegisteredAdapter, error: EngineError) -> None:
        logger.error("%s", error)
        if self._by_name.get(adapter.info.name) == adapter:
            del self._by_name[adapter.info.name]
        if self.use.is_used(adapter.number):
            self._failures[adapter.number] = error
        else:
            self._forget(adapter.number)

    def _forget(self, number: int) -> None:
        del self._by_number[number]
        self.memory.forget(number)

    def take_failures(self, waiting: Iterable[Request]) -> list[tuple[Request, EngineError]]:
        """Return the waiting requests whose adapter could not be read since the last call."""
        failures, self._failures = self._failures, {}
        if not failures:
            return []
        return [(each, failures[each.adapter_number]) for each in waiting if each.adapter_number in failures]

    def _on_missing(self, number: int) -> None:
        """Begin to read an adapter. One with a place replaces any that has none, others replace unused ones."""
        is_staying = self.use.has_place if self.use.has_place(number) else self.use.is_used
        is_begun = self.memory.is_reading(number) or number in self._failures
        if not is_begun and self._make_room(lambda each: not is_staying(each)):
            self.memory.begin(number)
            self.reader(self._by_number[number])

    def _read_again(self, adapter: RegisteredAdapter) -> None:
        """Read an adapter on the engine's thread."""
        try:
            read = self.read(adapter.info.name, adapter.path)
        except EngineError as error:
            self.fail(adapter.number, error)
        else:
            self.provide(adapter.number, read)

    def _on_unused(self, number: int) -> None:
        """Forget an adapter that was unloaded, and that no request uses any more."""
        adapter = self._by_number.get(number)
        if adapter is None or self.use.is_used(number) or self._by_name.get(adapter.info.name) == adapter:
            return
        self._evict(number)
        self._forget(number)
