"""The adapters of a model on which all routers of a deployment agree.

Routers of a registry keep them in Redis, processes that share a port in a private directory. A single router without a
registry keeps them in memory.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from baton.membership.registry.base import RegistryLost
from baton.router.adapters.adapter import MAX_ADAPTERS, Adapter, decode_adapter

logger = logging.getLogger(__name__)

T = TypeVar("T")


class AdapterTable(Protocol):
    """Adapters by name. Every method raises RegistryLost if the table cannot be reached."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may change it."""
        ...

    async def read(self) -> dict[str, Adapter]:
        """Return all adapters."""
        ...

    async def add(self, adapter: Adapter) -> Adapter:
        """Add an adapter unless the table has one of this name; return the one that it has then."""
        ...

    async def remove(self, name: str) -> None:
        """Remove an adapter; no-op if there is none of this name."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class MemoryTable:
    """The table of a single router."""

    is_shared = False

    def __init__(self) -> None:
        self._adapters: dict[str, Adapter] = {}

    async def read(self) -> dict[str, Adapter]:
        """Return all adapters."""
        return dict(self._adapters)

    async def add(self, adapter: Adapter) -> Adapter:
        """Add an adapter unless there is one of this name; return the one that is there then."""
        return self._adapters.setdefault(adapter.name, adapter)

    async def remove(self, name: str) -> None:
        """Remove an adapter."""
        self._adapters.pop(name, None)

    async def close(self) -> None:
        """Close nothing."""


class DirectoryTable:
    """A file for each adapter in a private directory of the machine, which outlives the routers' restarts."""

    is_shared = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._texts: dict[str, tuple[int, Adapter]] = {}  # by file name, with the time of its last change

    async def read(self) -> dict[str, Adapter]:
        """Return all adapters."""
        return await _in_thread(self._read)

    async def add(self, adapter: Adapter) -> Adapter:
        """Add an adapter unless there is one of this name; return the one that is there then."""
        return await _in_thread(lambda: self._add(adapter))

    async def remove(self, name: str) -> None:
        """Remove an adapter."""
        await _in_thread(lambda: self._file(name).unlink(missing_ok=True))

    async def close(self) -> None:
        """Close nothing."""

    def _file(self, name: str) -> Path:
        return self._directory / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _read(self) -> dict[str, Adapter]:
        found: dict[str, tuple[int, Adapter]] = {}
        for file in sorted(self._directory.glob("*.json"))[:MAX_ADAPTERS]:
            try:
                changed_ns = file.stat().st_mtime_ns
                known = self._texts.get(file.name)
                is_known = known is not None and known[0] == changed_ns
                found[file.name] = known if known and is_known else (changed_ns, decode_adapter(file.read_bytes()))
            except FileNotFoundError:
                continue  # removed meanwhile
            except ValueError as error:
                logger.warning("%s is left out: %s", file, error)
        self._texts = found
        return {adapter.name: adapter for _, adapter in found.values()}

    def _add(self, adapter: Adapter) -> Adapter:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._file(adapter.name)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(adapter.encode())
        try:
            os.link(draft, file)  # unlike a rename it fails if there is one
        except FileExistsError:
            try:
                return decode_adapter(file.read_bytes())
            except ValueError:  # damaged, as after a loss of power
                draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
        return adapter


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise RegistryLost(f"{type(error).__name__}: {error}") from error
