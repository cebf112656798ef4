"""Copies between memory and storage by one of NIXL's storage plugins: POSIX, GDS, GDS_MT or OBJ."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from baton.kvtransfer.errors import TransferFailed, TransportUnavailable
from baton.kvtransfer.nixl.library import Errors, load_nixl

POLL_S = 50e-6  # between two checks of a copy
# A copy here is one request of the plugin, whose queues would otherwise take 256 and 65,536.
QUEUES = {"POSIX": {"kernel_queue_size": "16", "ios_pool_size": "16"}}
LIBRARIES = {"GDS": "libcufile.so.0", "GDS_MT": "libcufile.so.0", "OBJ": "libcuobjclient.so.1"}


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """A range of an open file, or an object from its beginning."""

    kind: Literal["FILE", "OBJ"]
    device: int = 0  # descriptor of the file
    offset: int = 0
    name: str = ""  # of the object


class NixlStorage:
    """Owns NIXL agents with one storage plugin, one for each copy at the same time. Usable from any thread.

    A copy ends when NIXL has ended it, however long that takes: no write into the memory follows its return.
    """

    def __init__(self, plugin: str, parameters: Mapping[str, str]) -> None:
        """`parameters`: of the plugin. Raises TransportUnavailable if it does not work here, or has no such one."""
        self._plugin = plugin
        self._parameters = {**QUEUES.get(plugin, {}), **parameters}
        self._nixl, self._errors = load_nixl("a KV store of NIXL")
        self._idle = [self._new_agent()]
        known = self._idle[0].get_plugin_params(plugin)
        for name in parameters:
            if name not in known:
                raise TransportUnavailable(
                    f"{name} is no parameter of NIXL's {plugin} plugin; it has {', '.join(sorted(known)) or 'none'}"
                )

    def copy(self, operation: Literal["READ", "WRITE"], memory: memoryview, place: StoragePlace) -> None:
        """Read storage into memory, or write memory to storage; blocks. Raises TransferFailed."""
        view = np.frombuffer(memory, np.uint8)
        local = (view.ctypes.data, view.nbytes, 0)
        remote = (place.offset, view.nbytes, place.device)
        with (
            self._agent() as agent,
            self._registered(agent, [(*local, "")], "DRAM"),
            self._registered(agent, [(*remote, place.name)], place.kind),
        ):
            ours, theirs = agent.get_xfer_descs([local], "DRAM"), agent.get_xfer_descs([remote], place.kind)
            handle = agent.initialize_xfer(operation, ours, theirs, agent.name, b"", [self._plugin])
            try:
                state = agent.transfer(handle)
                while state == "PROC":
                    time.sleep(POLL_S)
                    state = agent.check_xfer_state(handle)
            finally:
                handle.release()
            if state != "DONE":
                raise TransferFailed(f"NIXL's {self._plugin} plugin failed: {state}")

    def have_objects(self, names: Sequence[str]) -> list[bool]:
        """Return for each name whether there is such an object. Raises TransferFailed."""
        rows = [(0, 0, number, name) for number, name in enumerate(names)]
        with self._agent() as agent:
            return [found is not None for found in agent.query_memory(rows, self._plugin, "OBJ")]

    def close(self) -> None:
        """Destroy the agents; no copy may be in progress."""
        self._idle.clear()

    @contextmanager
    def _agent(self) -> Iterator[Any]:
        """Yield an agent that nothing else uses. One that failed is not used again. Raises TransferFailed."""
        try:
            agent = self._idle.pop()
        except IndexError:
            try:
                agent = self._new_agent()
            except TransportUnavailable as error:
                raise TransferFailed(str(error)) from error
        try:
            yield agent
        except self._errors as error:
            raise TransferFailed(f"NIXL's {self._plugin} plugin failed: {error!r}") from error
        self._idle.append(agent)

    @contextmanager
    def _registered(self, agent: Any, rows: list[tuple[int, int, int, str]], kind: str) -> Iterator[None]:
        memory = agent.register_memory(rows, kind, [self._plugin])
        try:
            yield
        finally:
            with suppress(*self._errors):
                agent.deregister_memory(memory, [self._plugin])

    def _new_agent(self) -> Any:
        config = self._nixl.nixl_agent_config(enable_prog_thread=False, backends=[])
        errors: Errors = (*self._errors, RuntimeError)
        try:
            agent = self._nixl.nixl_agent(f"baton-storage-{uuid.uuid4().hex}", config)
            agent.create_backend(self._plugin, self._parameters)
        except errors as error:
            library = LIBRARIES.get(self._plugin)
            hint = f"; it needs {library}, and valid parameters" if library else "; check its parameters"
            raise TransportUnavailable(f"NIXL's {self._plugin} plugin does not start here: {error!r}{hint}") from error
        return agent
