"""Peers to read from: processes that serve a pool, and their in-memory twins in this process."""

import asyncio
import logging
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

import torch
import uvloop
from torch import Tensor

from baton.kvtransfer.backend import Backend
from baton.kvtransfer.base import KVTransport, PoolDescription, PoolIdentity
from baton.kvtransfer.in_memory import InMemoryNetwork, InMemoryTransport
from baton.kvtransfer.nccl.transport import PairBackend
from baton.kvtransfer.nixl.transport import NixlBackend
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.shared_memory.transport import SharedMemoryBackend
from baton.kvtransfer.staged.transport import StagedBackend
from baton.kvtransfer.tcp.transport import TcpBackend
from baton.kvtransfer.transport import Transport

HOST = "127.0.0.1"
PROCESS_BACKENDS = ("shared_memory", "tcp", "nixl", "gloo", "staged_tcp")
# These run the same code as the above: `auto` chooses between shared memory and TCP, `nixl_emulated` differs only
# inside UCX, and staging is the same over every transport.
VARIANTS = ("auto", "nixl_emulated", "staged_shared_memory")
CONNECT_DEADLINE_S = 10.0
CHUNK_TIMEOUT_S = 2.0  # gloo cannot abort a call that waits for a stopped peer
STAGING_BYTES = 16 << 20
STOP_S = 10.0  # for all threads of a process to handle a signal

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "nixl", __name__])


def create(
    backend: str, identity: PoolIdentity, memory: SharedPool, network: InMemoryNetwork, connect_deadline_s: float
) -> KVTransport:
    """Create a transport of any backend; `auto` is over shared memory and TCP."""
    if backend == "in_memory":
        return InMemoryTransport(identity, network, None, connect_deadline_s)
    names = ("shared_memory", "tcp") if backend == "auto" else (backend,)
    return Transport(identity, [backend_of(name, identity, memory, network, connect_deadline_s) for name in names])


def backend_of(
    name: str, identity: PoolIdentity, memory: SharedPool, network: InMemoryNetwork, deadline_s: float
) -> Backend:
    """Create one backend."""
    if name == "shared_memory":
        return SharedMemoryBackend(memory, deadline_s)
    if name == "tcp":
        return TcpBackend(HOST, 0, deadline_s)
    if name in ("nixl", "nixl_emulated"):
        return NixlBackend(identity.incarnation, HOST, 0, deadline_s, one_sided_only=name == "nixl")
    if name == "gloo":
        return PairBackend(HOST, 0, deadline_s, name="gloo", chunk_timeout_s=CHUNK_TIMEOUT_S)
    window = SharedPool()
    underneath = create(name.removeprefix("staged_"), identity, window, network, deadline_s)
    return StagedBackend(underneath, window, HOST, 0, deadline_s, window_bytes=STAGING_BYTES)


def fill(pool: Tensor, seed: int) -> None:
    """Fill an int64 pool with consecutive numbers, which differ between seeds."""
    torch.arange(pool.numel(), out=pool.view(-1))
    pool.add_(first_word(seed))


def first_word(seed: int) -> int:
    """Return the first number in a pool that was filled with `seed`."""
    return (seed << 40) + 1


def holds(pool: Tensor, block: int, seed: int, remote: int) -> bool:
    """Return whether every byte of a block equals block `remote` of a peer with the same block size."""
    return holds_unit(pool, block, seed, remote, pool.shape[1])


def holds_unit(pool: Tensor, unit: int, seed: int, remote: int, unit_words: int) -> bool:
    """Return whether every byte of a unit of `unit_words` words equals the peer's unit `remote`."""
    start = first_word(seed) + remote * unit_words
    return torch.equal(pool.view(-1, unit_words)[unit], torch.arange(start, start + unit_words))


class Peer(Protocol):
    """The owner of a pool."""

    description: PoolDescription

    def kill(self) -> None:
        """Kill it, and return when it has ended."""

    def stop(self) -> None:
        """Suspend it, as SIGSTOP does."""

    def resume(self) -> None:
        """Resume it, as SIGCONT does."""

    async def close(self) -> None:
        """Close its transport without ending it."""


class InProcessPeer:
    """A peer in this process."""

    def __init__(self, transport: KVTransport, network: InMemoryNetwork, description: PoolDescription) -> None:
        self.description = description
        self._transport = transport
        self._network = network

    def kill(self) -> None:
        self._network.kill(self.description.incarnation)

    def stop(self) -> None:
        self._network.stop(self.description.incarnation)

    def resume(self) -> None:
        self._network.resume(self.description.incarnation)

    async def close(self) -> None:
        await self._transport.close()


class ProcessPeer:
    """A process that serves a pool until it is killed."""

    def __init__(self, process: ForkServerProcess, pipe: Connection, description: PoolDescription) -> None:
        self.description = description
        self._process = process
        self._pipe = pipe

    @classmethod
    async def start(cls, backend: str, identity: PoolIdentity, shape: tuple[int, int], seed: int) -> "ProcessPeer":
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=serve, args=(theirs, backend, identity, shape, seed), daemon=True)
        await asyncio.to_thread(process.start)
        theirs.close()
        return cls(process, ours, await asyncio.to_thread(ours.recv))

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def stop(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        # On a busy machine a thread may still respond until the signal has stopped all of them.
        end_s = time.monotonic() + STOP_S
        while thread_states(self._process.pid) != {"T"}:
            assert time.monotonic() < end_s, "the peer does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    async def close(self) -> None:
        await self._ask("close")

    async def num_descriptors(self) -> int:
        """Return the number of open file descriptors of the process."""
        return int(await self._ask("descriptors"))

    async def _ask(self, command: str) -> str:
        self._pipe.send(command)
        return str(await asyncio.to_thread(self._pipe.recv))


def thread_states(pid: int) -> set[str]:
    """Return the states of a process's threads, see proc(5)."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states


def serve(pipe: Connection, backend: str, identity: PoolIdentity, shape: tuple[int, int], seed: int) -> None:
    """Run the peer's process."""
    torch.set_num_threads(1)
    # Saves half a second per process: UCX need not watch for unmapped memory, since pools live as long as the peer.
    os.environ["UCX_MEM_EVENTS"] = "n"
    if backend == "nixl_emulated":
        os.environ["UCX_TLS"] = "tcp"
    logging.getLogger().setLevel(logging.ERROR)
    uvloop.run(_serve(pipe, backend, identity, shape, seed))


async def _serve(pipe: Connection, backend: str, identity: PoolIdentity, shape: tuple[int, int], seed: int) -> None:
    memory = SharedPool()
    pool = memory.allocate(shape, torch.int64)
    fill(pool, seed)
    transport = create(backend, identity, memory, InMemoryNetwork(), CONNECT_DEADLINE_S)
    commands: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), lambda: commands.put_nowait(receive(pipe)))
    pipe.send(transport.register_pool(pool))
    while (command := await commands.get()) != "end":
        if command == "close":
            await transport.close()
            pipe.send("closed")
        else:
            pipe.send(str(len(os.listdir("/proc/self/fd"))))
    os._exit(0)  # the test has ended; no clean shutdown is needed


def receive(pipe: Connection) -> str:
    """Receive a command; `end` if the parent has ended."""
    try:
        return str(pipe.recv())
    except EOFError:
        return "end"


class Cluster:
    """The local transport and the peers of one test; no process outlives it."""

    def __init__(self, backend: str, identity: PoolIdentity, shape: tuple[int, int], connect_deadline_s: float) -> None:
        self.backend = backend
        self.identity = identity
        self.network = InMemoryNetwork()
        self.memory = SharedPool()
        self.pool = self.memory.allocate(shape, torch.int64)
        self.transport = create(backend, identity, self.memory, self.network, connect_deadline_s)
        self.description = self.transport.register_pool(self.pool)
        self._peers: list[Callable[[], None]] = []

    async def start_peer(
        self, shape: tuple[int, int] | None = None, seed: int = 1, fingerprint: str | None = None
    ) -> Peer:
        """Start a peer with a pool of `shape`, by default ours, filled with `seed`."""
        identity = PoolIdentity(uuid.uuid4().hex, fingerprint or self.identity.fingerprint)
        shape = shape or (self.pool.shape[0], self.pool.shape[1])
        peer: Peer
        if self.backend == "in_memory":
            peer = self._start_twin(identity, shape, seed)
        else:
            peer = await ProcessPeer.start(self.backend, identity, shape, seed)
        self._peers.append(peer.kill)
        return peer

    def _start_twin(self, identity: PoolIdentity, shape: tuple[int, int], seed: int) -> InProcessPeer:
        pool = torch.empty(shape, dtype=torch.int64)
        fill(pool, seed)
        transport = InMemoryTransport(identity, self.network)
        return InProcessPeer(transport, self.network, transport.register_pool(pool))

    async def end(self) -> None:
        """End everything; SIGKILL also ends stopped processes."""
        for kill in self._peers:
            kill()
        await self.transport.close()
        self.memory.close()
