"""The engine and the KV pools of a worker, as its services use them. Simulated workers have others: no torch here."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.origin import KVOrigin
from baton.engine.outputs import EngineStats, StepOutput
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.receive import Receiver
from baton.protos import worker_pb2
from baton.rpc.peers import Identified
from baton.rpc.status import NotFound
from baton.worker.kv.stored_hashes import StoredHashes
from baton.worker.saved_prefill import POOL

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The incarnation under which a worker serves its current role, and its fingerprint."""

    incarnation: str
    fingerprint: str


class EngineCalls(Protocol):
    """The calls that services make between two steps of an engine; see `Engine`."""

    @property
    def blocks(self) -> BlockManager:
        """Blocks of the KV pool."""
        ...

    def add(self, request: Request) -> None:
        """Queue a request."""
        ...

    def abort(self, request_id: RequestId) -> bool:
        """End a request in any state."""
        ...

    def end_receive(self, request_id: RequestId, received: Received) -> None:
        """Report that a receiving request's blocks are no longer being written."""
        ...


class KVReceive(Receiver, Protocol):
    """The receive of one request's blocks by all ranks; see `GroupReceiver`."""

    @property
    def num_blocks_expected(self) -> int:
        """Blocks whose checksums are known."""
        ...


class KVPools(Protocol):
    """The KV pools of a worker's ranks; see `Ranks`."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all ranks, from which checksums are computed."""
        ...

    def describe(self) -> list[worker_pb2.KVPool]:
        """Return the pool descriptions for peers, in rank order."""
        ...

    async def receive(
        self, pools: Sequence[worker_pb2.KVPool], block_table: Sequence[int], num_known_blocks: int, deadline_s: float
    ) -> KVReceive:
        """Connect to a peer's pools, to read into `block_table`. Raises TransferError."""
        ...

    async def checksums(self, blocks: Sequence[int], units_per_block: int) -> list[int]:
        """Return checksums of blocks: all of the first rank, then all of the next."""
        ...

    def units_for(self, num_readers: int) -> int:
        """Return the checksum units of a block on each rank for a reader with `num_readers` ranks."""
        ...

    async def clear(self, blocks: Sequence[int], wiped: Sequence[int] = ()) -> None:
        """Return once no abandoned read can write into `blocks` any more, and `wiped` are zeroed."""
        ...


class StoredKV(Protocol):
    """The KV of a request that stores below the pool have; see `StoredFetch`."""

    @property
    def tokens_by_tier(self) -> dict[str, int]:
        """Fetched tokens, by the name of the tier."""
        ...

    def add(self) -> "asyncio.Future[None]":
        """Queue the request in the engine. It receives the stored KV if that pays; see `Request.receives_kv`."""
        ...

    async def run(self) -> None:
        """Fetch it into the request's blocks."""
        ...

    def outcome(self, task: "asyncio.Task[None]") -> Received:
        """Return what was fetched by the task of `run`."""
        ...


class Stores(Protocol):
    """The stores below a worker's pool; see `KVTiers`."""

    @property
    def names(self) -> Sequence[str]:
        """Names that are equal for workers that share a store."""
        ...

    @property
    def hashes(self) -> StoredHashes:
        """Hashes of the blocks known to be stored."""
        ...

    def start(self) -> None:
        """Start saving the pool's blocks."""
        ...

    async def find(self, request: Request) -> StoredKV | None:
        """Return what they have of a request's prefix; None if that is too little."""
        ...

    async def clear(self, tier: str) -> int:
        """Delete the blocks of a store; return their number. Raises NotFound, or Unavailable if the store fails."""
        ...

    async def close(self) -> None:
        """Save what is left, and close the stores; the engine must still run."""
        ...


def no_tier(tier: str, names: Sequence[str]) -> NotFound:
    """Return the error for a tier that a worker does not have."""
    return NotFound(f"there is no tier {tier[:64]!r}; the worker has {', '.join((POOL, *names))}")


class NoStores:
    """A pool without stores below it."""

    def __init__(self) -> None:
        self.names: Sequence[str] = ()
        self.hashes = StoredHashes()

    def start(self) -> None:
        """Do nothing."""

    async def find(self, request: Request) -> None:
        """Return None."""

    async def clear(self, tier: str) -> int:
        """Raise NotFound."""
        raise no_tier(tier, ())

    async def close(self) -> None:
        """Do nothing."""


NO_STORES = NoStores()


class Host(Protocol):
    """A worker's engine, seen from the event loop; see `EngineHost`."""

    config: EngineConfig
    fingerprint: str  # peers exchange KV only if it is equal
    origin: KVOrigin  # of the KV that the engine computes
    finish_rule: FinishRule
    vocab_size: int
    vocabulary: str  # digest of the tokenizer's tokens and ids; empty: there is no tokenizer
    block_bytes: int
    kv_groups: KVGroups

    @property
    def ranks(self) -> KVPools:
        """Pools of the worker's ranks."""
        ...

    @property
    def identity(self) -> Identified:
        """The identity that calls to the worker must name."""
        ...

    @property
    def is_short_of_ranks(self) -> bool:
        """Whether the engine computes nothing until more ranks join its group."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether the current step takes too long."""
        ...

    def listen(self, listener: Callable[[StepOutput], None]) -> None:
        """Call `listener` with every step's output, on the event loop."""
        ...

    def call(self, function: Callable[[EngineCalls], T]) -> "asyncio.Future[T]":
        """Run `function(engine)` between two steps; the future need not be awaited."""
        ...

    async def stats(self) -> EngineStats:
        """Return current load and counters since the start."""
        ...

    async def wait_unless_short(self, future: "asyncio.Future[T]") -> bool:
        """Wait for a call and return True; return False while the engine waits for ranks, when it runs no calls."""
        ...
