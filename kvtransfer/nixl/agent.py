"""A NIXL agent and the one thread that may use it.

NIXL's own progress thread is disabled, since it keeps part of a core busy all the time. Without it NIXL makes progress
only when polled: this thread polls while it reads and while a peer needs it, and sleeps otherwise.
"""

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from baton.kvtransfer.errors import PeerLost, TransportUnavailable
from baton.kvtransfer.nixl.gpu_memory import EXPANDABLE, MemoryPlace, bind_thread, has_ucx_cuda
from baton.kvtransfer.nixl.library import Errors, load_nixl
from baton.kvtransfer.nixl.read import Read, Region
from baton.kvtransfer.threads import run_by

T = TypeVar("T")

logger = logging.getLogger(__name__)

POLL_S = 20e-6  # between polls of transfers without progress
DISCONNECT_S = 0.1  # to poll after the last use of a peer: UCX closes a connection only while it is polled
DISCONNECT_POLL_S = 1e-3
CLOSED = "the transport was closed"


class NixlAgent:
    """A NIXL agent with the UCX backend; `call`, `call_async` and `read` run everything that uses it in its thread."""

    def __init__(self, name: str, gpu: int | None = None) -> None:
        """name: unique to this process's run; gpu: index in this process of the GPU whose memory is served.

        Raises TransportUnavailable if NIXL or its UCX backend does not work here.
        """
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._reads: list[Read] = []
        self._remote: dict[str, Any] = {}  # prepared descriptors of a peer's pool, by peer
        self._removing: set[str] = set()  # peers to remove when their last read has ended
        self._registered: list[Any] = []
        self._memory: list[Tensor] = []  # keeps registered memory alive, since NIXL stores only addresses
        self._local: list[Any] = []  # prepared descriptors, by the region's index
        self._numbers: dict[Region, int] = {}
        self._num_polled_for = 0
        self._num_polls = 0  # also counts commands, during which UCX may make progress too
        self._on_idle: list[Callable[[int], None]] = []
        self._poll_until_s = 0.0
        self._closing = False
        self._lock = threading.Lock()  # no command may be queued after `_has_ended` is set
        self._has_ended = False
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(name, gpu, ready), name="baton-kv-nixl", daemon=True)
        self._thread.start()
        ready.result()

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Run `function` in the agent's thread; callable from any thread."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(self._run_command(function))
            except Exception as error:
                future.set_exception(error)

        self._put(run)
        return future

    def call_async(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Run `function` in the agent's thread; called on the event loop, which may await the result."""
        return run_by(self._put, partial(self._run_command, function))

    def read(self, read: Read) -> None:
        """Start a read, which resolves its future when it ends; callable from any thread."""
        self._put(lambda: self._reads.append(read))

    def poll_for_peer(self, change: int) -> None:
        """Count one more (1) or one fewer (-1) peer that needs this side to poll; callable from any thread."""

        def count() -> None:
            self._num_polled_for += change
            self._poll_until_s = time.monotonic() + DISCONNECT_S

        self._put(count)

    def report_polls_when_idle(self, report: Callable[[int], None]) -> None:
        """Call `report` with the number of polls so far, in the agent's thread, once this side does not poll.

        Callable from any thread.
        """
        self._put(lambda: self._on_idle.append(report))

    def close(self) -> None:
        """End the thread and the agent; called from another thread, blocks. Reads in flight fail with PeerLost."""

        def stop() -> None:
            self._closing = True

        self._commands.put(stop)  # idempotent: a thread that has ended takes no commands
        self._thread.join()

    def register(self, memory: Tensor, place: MemoryPlace) -> None:
        """Register memory with NIXL, for peers to read and for reads into it; in the agent's thread.

        Raises TransportUnavailable for GPU memory that UCX cannot use.
        """
        if place.is_gpu and not has_ucx_cuda():
            raise TransportUnavailable(
                "NIXL's UCX has not loaded its CUDA support (libuct_cuda, which needs the driver's libcuda.so.1): it "
                "cannot read or write GPU memory"
            )
        if place.is_gpu:
            bind_thread(place.device)
        row = (memory.data_ptr(), memory.nbytes, place.device, "")
        try:
            self._registered.append(self._agent.register_memory([row], place.kind))
        except self._errors as error:
            hint = f": UCX does not detect GPU memory there, or {EXPANDABLE}" if place.is_gpu else ""
            raise TransportUnavailable(f"NIXL cannot register {place.name}: {error!r}{hint}") from error
        self._memory.append(memory)

    def prepare(self, region: Region) -> int:
        """Prepare reads into a region of registered memory and return its index; in the agent's thread."""
        if region not in self._numbers:
            self._local.append(self._prepare("NIXL_INIT_AGENT", region))
            self._numbers[region] = len(self._local) - 1
        return self._numbers[region]

    def _prepare(self, owner: str, region: Region) -> Any:
        return self._agent.prep_xfer_dlist(owner, region.rows(), region.place.kind)

    def metadata(self) -> bytes:
        """Return the metadata that peers need to reach the registered memory; in the agent's thread."""
        metadata: bytes = self._agent.get_agent_metadata()
        return metadata

    def add_peer(self, metadata: bytes, region: Region) -> str:
        """Prepare reads from a peer's region and return the peer's name; in the agent's thread.

        Raises TransportUnavailable if NIXL rejects the metadata.
        """
        try:
            name = str(self._agent.add_remote_agent(metadata), "utf-8")
            self._removing.discard(name)
            if name not in self._remote:
                self._remote[name] = self._prepare(name, region)
        except self._errors as error:
            raise TransportUnavailable(f"NIXL rejects the peer's metadata: {error!r}") from error
        return name

    def remove_peer(self, name: str) -> None:
        """Remove a peer once its last read has ended; in the agent's thread."""
        self._removing.add(name)

    def _run_command(self, function: Callable[[], T]) -> T:
        self._num_polls += 1
        if self._closing:
            raise PeerLost(CLOSED)
        return function()

    def _put(self, command: Callable[[], None]) -> None:
        with self._lock:
            if self._has_ended:
                raise PeerLost(CLOSED)
            self._commands.put(command)

    def _run(self, name: str, gpu: int | None, ready: "Future[None]") -> None:
        try:
            if gpu is not None:
                bind_thread(gpu)  # UCX uses the CUDA context that is current when it starts
            self._agent, self._errors = create_agent(name, reads_gpu=gpu is not None)
        except Exception as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        try:
            while not self._closing:
                self._step()
        except Exception:
            logger.exception("the NIXL thread failed and ends")
        finally:
            self._closing = True
            self._tear_down()

    def _step(self) -> None:
        self._run_commands()
        self._num_polls += self._is_polling()
        moved = [self._advance(read) for read in self._reads]
        self._reads = [read for read in self._reads if not read.has_ended]
        self._remove_peers()
        if not self._reads and self._is_polling():
            self._agent.get_new_notifs()  # makes UCX progress
        if not any(moved) and self._is_polling():
            time.sleep(POLL_S if self._reads or self._num_polled_for else DISCONNECT_POLL_S)

    def _is_polling(self) -> bool:
        return bool(self._reads) or self._num_polled_for > 0 or time.monotonic() < self._poll_until_s

    def _run_commands(self) -> None:
        """Run the queued commands; wait for one if there is nothing to poll."""
        if not self._is_polling():
            waiting, self._on_idle = self._on_idle, []
            for report in waiting:
                report(self._num_polls)
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _advance(self, read: Read) -> bool:
        """Post the next step or check the one in flight; return True if the read made progress."""
        try:
            if read.handle is not None:
                state = self._agent.check_xfer_state(read.handle)
            elif read.next_step():
                remote = self._remote.get(read.peer)
                if remote is None:
                    raise PeerLost(f"peer {read.peer} was removed")
                local = self._local[read.region]
                read.handle = self._agent.make_prepped_xfer("READ", local, read.ours, remote, read.theirs, b"")
                state = self._agent.transfer(read.handle)
            else:
                read.finish()
                return True
            if state == "PROC":
                read.wait()
                return False
            if state == "DONE":
                read.end_step()
                return True
        except self._errors as error:
            state = type(error).__name__
        except Exception as error:
            read.fail(error)
            return True
        read.break_off(PeerLost(f"NIXL could not read from peer {read.peer}: {state}"))
        return True

    def _remove_peers(self) -> None:
        busy = {read.peer for read in self._reads}
        for name in self._removing - busy:
            self._removing.discard(name)
            handle = self._remote.pop(name, None)
            if handle is not None:
                handle.release()
                self._poll_until_s = time.monotonic() + DISCONNECT_S
                try:
                    self._agent.remove_remote_agent(name)
                except self._errors as error:
                    logger.info("NIXL cannot remove peer %s: %r", name, error)

    def _tear_down(self) -> None:
        """Destroy the agent; only this ends its transfers in flight for certain."""
        for read in self._reads:
            read.drop_handle(self._errors)
        for handle in [*self._remote.values(), *self._local]:
            handle.release()
        self._remote.clear()
        self._local.clear()
        for registered in self._registered:
            self._agent.deregister_memory(registered)
        self._registered.clear()
        self._on_idle.clear()
        del self._agent
        self._memory.clear()
        with self._lock:
            self._has_ended = True
        while not self._commands.empty():
            self._commands.get()()
        for read in self._reads:
            read.fail(PeerLost(CLOSED))
        self._reads.clear()


def create_agent(name: str, *, reads_gpu: bool) -> tuple[Any, Errors]:
    """Return a new NIXL agent and the errors that it raises, which share no base. Raises TransportUnavailable.

    reads_gpu: it reads GPU memory.
    """
    nixl, errors = load_nixl("--transport nixl")
    if reads_gpu:  # UCX does that by itself only over NVLink, unless told that PCIe or the same GPU will do
        os.environ.setdefault("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on")
    try:
        agent = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
    except errors as error:
        raise TransportUnavailable(f"NIXL does not start here: {error!r}") from error
    except RuntimeError as error:
        raise TransportUnavailable(f"NIXL does not start here: {error}") from error
    if not agent.get_plugin_mem_types("UCX"):
        raise TransportUnavailable("NIXL cannot load its UCX backend here")
    return agent, errors
