"""The LoRA adapters of a worker, as its services use them. Simulated workers have none: no torch here."""

from typing import Protocol

from baton.engine.errors import AdaptersDisabled
from baton.protos import worker_pb2


class Adapters(Protocol):
    """Adapters that a worker has loaded; see `WorkerAdapters`."""

    @property
    def limits(self) -> worker_pb2.AdapterLimits | None:
        """Limits of the adapters; None if the worker has none."""
        ...

    def list(self) -> worker_pb2.AdapterList:
        """Return the loaded adapters by name, without `is_resident`. Callers must not change the message."""
        ...

    async def load(self, name: str, path: str) -> worker_pb2.Adapter:
        """Load an adapter from a directory. Raises an EngineError if it is refused."""
        ...

    async def unload(self, name: str) -> None:
        """Refuse new requests for an adapter. Raises UnknownAdapter."""
        ...


class NoAdapters:
    """A worker that was started without adapters."""

    limits = None

    def list(self) -> worker_pb2.AdapterList:
        """Return no adapters."""
        return worker_pb2.AdapterList()

    async def load(self, name: str, path: str) -> worker_pb2.Adapter:
        """Raise AdaptersDisabled."""
        raise AdaptersDisabled("this worker was started without LoRA adapters; start it with --enable-lora")

    async def unload(self, name: str) -> None:
        """Raise AdaptersDisabled."""
        await self.load(name, "")


NO_ADAPTERS = NoAdapters()
