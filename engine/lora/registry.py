"""Adapters that an engine has loaded, by name."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
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
from baton.engine.lora.adapted_linears import AdaptedLinears
from baton.engine.lora.adapter_files import read_adapter
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.info import AdapterInfo
from baton.engine.lora.low_rank import low_ranks
from baton.engine.lora.use import AdapterUse
from baton.engine.request import Request

MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter whose matrices are in memory, but which no request can name yet."""

    number: int
    info: AdapterInfo


class AdapterRegistry:
    """Loaded adapters. All calls but `next_number` and `read` must come from the engine's thread."""

    def __init__(
        self, config: LoraConfig, adapted: AdaptedLinears | None, on_removed: Callable[[int], None] = lambda _: None
    ) -> None:
        """adapted: of the model; None if adapters are not enabled. on_removed: called with the numbers of adapters
        whose matrices have been dropped.
        """
        self.config = config
        self.use = AdapterUse(config.max_loras, self._drop_unused)
        self._adapted = adapted
        self.on_removed = on_removed
        self._numbers = itertools.count(1)
        self._by_name: dict[str, ReadAdapter] = {}
        self._unloaded: set[int] = set()  # numbers of adapters without a name, which requests still use

    @property
    def is_enabled(self) -> bool:
        """Whether adapters can be loaded."""
        return self._adapted is not None

    def next_number(self) -> int:
        """Return a number for an adapter that was never used before; may be called on any thread."""
        return next(self._numbers)

    def read(self, name: str, path: Path, number: int | None = None) -> ReadAdapter:
        """Read an adapter's files; may be called on any thread, and takes as long as the disk.

        number: as given to other ranks. The result must be inserted or dropped. Raises InvalidAdapter,
        AdaptersDisabled, or EngineError if memory is short.
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

    def _read(self, adapted: AdaptedLinears, name: str, path: Path, number: int) -> ReadAdapter:
        files, dtype = read_adapter(path, self.config.max_rank, adapted.sources), adapted.dtype
        targets = sorted({module.rpartition(".")[2] for module in files.modules})
        info = AdapterInfo(
            name, files.digest(dtype), files.rank, files.num_bytes, files.base_model, target_modules=tuple(targets)
        )
        adapted.adapters.add(number, low_ranks(files, adapted.sources, dtype))
        return ReadAdapter(number, info)

    def insert(self, read: ReadAdapter) -> AdapterInfo:
        """Let requests name an adapter that was read; no-op if one with the same contents is loaded.

        Otherwise it is dropped and raises AdapterConflict, if another one has its name, or AdapterLimit.
        """
        loaded = self._by_name.get(read.info.name)
        if loaded is None and len(self._by_name) + len(self._unloaded) < self.config.max_cpu_loras:
            self._by_name[read.info.name] = read
            return read.info
        self.drop(read.number)
        if loaded is None:
            raise AdapterLimit(
                f"max_cpu_loras is {self.config.max_cpu_loras}, and as many LoRA adapters are loaded or still in use: "
                "unload one, or start with a larger --max-cpu-loras"
            )
        if loaded.info.digest != read.info.digest:
            raise AdapterConflict(
                f"a LoRA adapter {shown(read.info.name)} with other contents is loaded; unload it first"
            )
        return loaded.info

    def drop(self, number: int) -> None:
        """Drop an adapter that was read and not inserted; no-op if it was not read."""
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
        self._unloaded.add(adapter.number)
        if not self.use.is_used(adapter.number):
            self._drop_unused(adapter.number)
        return adapter.info

    def get(self, name: str) -> AdapterInfo | None:
        """Return a loaded adapter."""
        adapter = self._by_name.get(name)
        return None if adapter is None else adapter.info

    def infos(self) -> list[AdapterInfo]:
        """Return all loaded adapters, by name."""
        return [adapter.info for _, adapter in sorted(self._by_name.items())]

    @property
    def load_s(self) -> float:
        """Seconds of the last copy of an adapter to the device; 0: there was none."""
        return self._adapted.adapters.load_s if self._adapted is not None else 0.0

    def resident(self) -> list[str]:
        """Return the names of adapters that a step can use without a copy to the device."""
        numbers = self.resident_numbers()
        return [name for name, adapter in sorted(self._by_name.items()) if adapter.number in numbers]

    def resident_numbers(self) -> frozenset[int]:
        """Return the numbers of adapters that a step can use without a copy, also of those without a name."""
        return self._adapted.adapters.resident() if self._adapted is not None else frozenset()

    def resolve(self, request: Request) -> None:
        """Set which loaded adapter a new request uses.

        Raises UnknownAdapter if it is not loaded, or if the request expects other contents.
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
            request.block_hashes.clear()  # those without a digest match no block
        request.adapter_number = adapter.number

    def _drop_unused(self, number: int) -> None:
        if number in self._unloaded:
            self._unloaded.discard(number)
            self.drop(number)
