"""The pool of all workers that the router knows."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

from baton.membership.registry.base import Registry, RegistryView
from baton.protos.worker_pb2 import WorkerDescription
from baton.router.errors import WorkerLost
from baton.router.index.prefix_index import STORES, ExpectedBlocks, PrefixIndex
from baton.router.policy.cluster import CachedTokens, ClusterSnapshot, WorkerRole, WorkerSnapshot
from baton.router.workers.acceptance import Objection, objection_to
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.stranger import AttemptSlots
from baton.router.workers.worker_models import WorkerModels
from baton.rpc.status import Unavailable
from baton.rpc.tls import Plaintext, Security


@dataclass(frozen=True, slots=True)
class WorkerIndex:
    """The connected workers. A worker that joins, leaves or begins to drain invalidates it."""

    by_incarnation: Mapping[str, WorkerConnection]
    block_sizes: frozenset[int]  # of any worker
    max_model_len: int | None  # maximum prompt plus output of any ready decode worker; None: none is ready
    fingerprints: frozenset[str]  # of ready decode workers
    same_ids: Mapping[str, list[str]]  # addresses of workers that have the same id, by id


def make_worker_index(connections: Iterable[WorkerConnection]) -> WorkerIndex:
    """Return the index of the connections that have a worker."""
    by_incarnation, block_sizes, lengths, fingerprints = {}, set(), set(), set()
    addresses: defaultdict[str, list[str]] = defaultdict(list)  # by worker id
    for connection in connections:
        description = connection.description
        if description is None:
            continue
        by_incarnation[description.incarnation] = connection
        block_sizes.add(description.block_size)
        if connection.state is not ConnectionState.CONNECTING:
            addresses[description.worker_id].append(connection.address)
        if connection.state is ConnectionState.READY and ROLES[description.role] is not WorkerRole.PREFILL:
            lengths.add(description.max_model_len)
            fingerprints.add(description.fingerprint)
    same_ids = {worker_id: several for worker_id, several in addresses.items() if len(several) > 1}
    longest = max(lengths, default=None)
    return WorkerIndex(by_incarnation, frozenset(block_sizes), longest, frozenset(fingerprints), same_ids)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """A worker, and the number of a prompt's tokens that it has cached."""

    worker: WorkerSnapshot
    num_tokens: int


class WorkerPool:
    """Connections to the workers of a model, the index of their caches, and the blocks that these should have soon.

    The registry lists the workers. A worker that is no longer listed is removed only once its connection is lost, too:
    a live stream is better evidence than a missing lease.
    """

    def __init__(
        self,
        registry: Registry,
        model_name: str,
        router_id: str,
        watch_interval_ms: int,
        security: Security | None = None,
        models: WorkerModels | None = None,
        vocabulary: str = "",
    ) -> None:
        """`security` defaults to plaintext. `models`: of the router; None: this one alone.

        `vocabulary`: digest of the model's tokenizer here; workers with another one are refused. Default: any is used.
        """
        self.index = PrefixIndex()
        self.expected = ExpectedBlocks()  # not in the index yet
        self.registry = registry
        self.view = RegistryView()  # the registry's last list
        self._model_name = model_name
        self._models = models or WorkerModels((model_name,))
        self._vocabulary = vocabulary
        self.router_id = router_id
        self._watch_interval_ms = watch_interval_ms
        self._security: Security = security or Plaintext()
        self._connections: dict[str, WorkerConnection] = {}  # by address
        self._tasks: dict[str, asyncio.Task[None]] = {}  # run the connections, by address
        self._slots = AttemptSlots()
        self._past_losses: Counter[WorkerRole] = Counter()  # of connections that were removed
        self._worker_index: WorkerIndex | None = None  # None: to be computed
        self._logged_ids: set[str] = set()  # ids of several workers that were logged
        self._logged_incarnations: dict[str, str] = {}  # for which `_check` logged a warning, by address
        self._change = asyncio.Event()
        self._turn = 0
        self._seed = crc32(router_id.encode())
        self._ended: Unavailable | None = None

    async def run(self) -> None:
        """Follow the registry and keep a connection to each worker, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._models.watch(lambda: self._reconcile(self.view, tasks))
                await self.registry.follow(lambda view: self._reconcile(view, tasks))
        finally:
            await self.registry.close()

    @property
    def connections(self) -> list[WorkerConnection]:
        """All connections, in the order in which their addresses were first listed."""
        return list(self._connections.values())

    @property
    def reached(self) -> list[WorkerConnection]:
        """Connections that have a worker now: few, however many addresses the registry lists."""
        return list(self._current().by_incarnation.values())

    @property
    def unlearnt(self) -> list[str]:
        """Addresses of workers whose cache snapshot is expected soon."""
        return [connection.address for connection in self._connections.values() if connection.is_learning]

    @property
    def is_degraded(self) -> bool:
        """Whether requests may miss cached prefixes: the member list or a reachable worker's snapshot is missing."""
        return not self.view.is_listed or bool(self.unlearnt)

    @property
    def is_sound(self) -> bool:
        """Whether no worker is listed, or some worker is reached: registry and network are as they should be."""
        return self.view.is_listed and (bool(self.reached) or not self._connections)

    @property
    def losses(self) -> Counter[WorkerRole]:
        """Number of workers lost before they began to drain, by role."""
        lost = (connection.losses for connection in self._connections.values() if connection.losses)
        return sum(lost, self._past_losses)

    def snapshot(self) -> ClusterSnapshot:
        """Return the workers that take requests now."""
        snapshots = (connection.snapshot() for connection in self.reached)
        return ClusterSnapshot(tuple(each for each in snapshots if each is not None), self._turn, self._seed)

    def take_turn(self) -> None:
        """Count a request that was routed."""
        self._turn += 1

    def connection(self, incarnation: str) -> WorkerConnection | None:
        """Return the connection to an incarnation of a worker; None if it was lost."""
        return self._current().by_incarnation.get(incarnation)

    def note_drain(self, incarnation: str) -> None:
        """Send no more requests to a worker that handed one off, until it reports that it was undrained."""
        if (connection := self.connection(incarnation)) is not None:
            connection.note_drain()

    def end(self, error: Unavailable) -> None:
        """Fail every request at the workers, and every wait for a worker, with the error."""
        self._ended = error
        for connection in self.reached:
            connection.fail_requests(error)
        self._notify()

    def cached_tokens(self, cluster: ClusterSnapshot, hashes: Callable[[int], bytes]) -> CachedTokens:
        """Return the lengths of the prompt's prefix that workers have cached or should have, and that stores have.

        `hashes` returns the prompt's block hashes for a block size.
        """
        workers = self._current()
        cached: dict[str, int] = {}
        stored: dict[str, int] = {}  # by name of the store
        for block_size in workers.block_sizes:
            packed = hashes(block_size)
            found = self.index.match(packed)
            for incarnation, num_blocks in self.expected.match(packed).items():
                found[incarnation] = max(num_blocks, found.get(incarnation, 0))
            for key, num_blocks in found.items():
                connection = workers.by_incarnation.get(key.removesuffix(STORES))
                description = connection.description if connection is not None else None
                if description is None or description.block_size != block_size:
                    continue
                if not key.endswith(STORES):
                    cached[key] = num_blocks * block_size
                for name in description.kv_stores if key.endswith(STORES) else ():
                    stored[name] = max(num_blocks * block_size, stored.get(name, 0))
        return CachedTokens.of(cluster, cached, stored)

    def source(self, incarnation: str, hashes: Callable[[int], bytes]) -> PrefixSource | None:
        """Return a worker as a source of the prompt, draining or not; None if it was lost or has none of it."""
        connection = self.connection(incarnation)
        worker = connection.as_source() if connection is not None else None
        if worker is None:
            return None
        num_blocks = self.index.match(hashes(worker.block_size)).get(incarnation, 0)
        return PrefixSource(worker, num_blocks * worker.block_size) if num_blocks else None

    def num_seqs(self) -> int | None:
        """Return the sum of the ready decode workers' `max_num_seqs`; None if one does not report it.

        A draining worker counts with the requests that it still runs for this router.
        """
        return self._num_seqs(lambda found: ROLES[found.role] is not WorkerRole.PREFILL)

    def num_embedding_seqs(self) -> int | None:
        """Return the same sum for prefill workers that make embeddings."""
        return self._num_seqs(lambda found: ROLES[found.role] is WorkerRole.PREFILL and found.HasField("pooling"))

    def _num_seqs(self, counts: Callable[[WorkerDescription], bool]) -> int | None:
        num_seqs, num_ready = 0, 0
        for connection in self.reached:
            description = connection.description
            if description is None or connection.state is ConnectionState.CONNECTING:
                continue
            if not counts(description):
                continue
            if connection.state.is_draining:
                num_seqs += connection.load.num_own_requests
            elif not description.max_num_seqs:
                return None
            else:
                num_ready += 1
                num_seqs += description.max_num_seqs
        return num_seqs if num_ready else 0

    def max_model_len(self) -> int | None:
        """Return the maximum prompt plus output of any ready decode worker; None if none is ready."""
        return self._current().max_model_len

    def expects_prefiller(self, fingerprints: frozenset[str], num_tokens: int) -> bool:
        """Return whether a worker that takes no requests now may later prefill `num_tokens` for this KV."""
        if not fingerprints:
            return False
        return any(each.may_prefill_later(fingerprints, num_tokens) for each in self._connections.values())

    def has_decoder(self, fingerprint: str) -> bool:
        """Return whether a decode worker with this fingerprint is ready; with any, if it is empty."""
        ready = self._current().fingerprints
        return fingerprint in ready if fingerprint else bool(ready)

    def is_ambiguous(self, worker_id: str) -> bool:
        """Return whether several connected workers have this id."""
        return worker_id in self._current().same_ids

    async def wait_change(self, timeout_s: float) -> None:
        """Wait until a worker joins or leaves, or for the timeout. Raises the error that the pool ended with."""
        if self._ended is not None:
            raise self._ended
        change = self._change
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await change.wait()

    def _reconcile(self, view: RegistryView, tasks: asyncio.TaskGroup) -> None:
        """Connect to new workers, and mark those that are no longer listed."""
        self._models.note({member.model for member in view.members})
        known = {member.incarnation for member in self.view.members}
        self.view = view
        members = [member for member in view.members if member.model == self._model_name]
        fixed = (address for address in view.fixed if self._models.at(address) == self._model_name)
        listed = dict.fromkeys((*fixed, *(member.address for member in members)))
        renewed = {member.address for member in members if member.incarnation not in known}
        for connection in self.connections:
            connection.is_elsewhere = connection.address not in listed and connection.address in view.fixed
            connection.mark_listed(connection.address in listed)
            # A new incarnation at an address that was never reached is a new worker, without past failures.
            is_renewed = connection.address in renewed and bool(connection.last_error)
            if connection.is_stranger and (is_renewed or not connection.is_listed):
                self._tasks[connection.address].cancel()
                self._remove(connection)
        for address in listed:
            if address not in self._connections:
                self._connect(address, tasks)

    def _connect(self, address: str, tasks: asyncio.TaskGroup) -> None:
        connection = WorkerConnection(
            address,
            self.router_id,
            self._watch_interval_ms,
            self.index,
            self._check,
            self._notify,
            self._security,
            self._slots,
            self.view.fixed,
        )
        self._connections[address] = connection
        self._tasks[address] = tasks.create_task(self._keep(connection), name=f"worker {address}")

    def _remove(self, connection: WorkerConnection) -> None:
        del self._connections[connection.address], self._tasks[connection.address]
        self._past_losses += connection.losses
        self._logged_incarnations.pop(connection.address, None)

    async def _keep(self, connection: WorkerConnection) -> None:
        """Run the connection, and remove it once it gives up."""
        await connection.run()
        if self._connections.get(connection.address) is not connection:
            return
        self._remove(connection)
        if not connection.is_elsewhere:
            logger.info("the worker at %s is removed: it is in no registry and unreachable", connection.address)

    def _check(self, address: str, found: WorkerDescription) -> None:
        """Raise WorkerLost if this router must not use the worker: another may have taken over the address."""
        known = {each.description.incarnation: each for each in self.connections if each.description is not None}
        is_fixed = address in self.view.fixed
        if found.incarnation in known:
            objection: Objection | None = Objection(f"it is the one at {known[found.incarnation].address}")
        else:
            objection = objection_to(found, self._model_name, self._models, self._vocabulary, is_fixed=is_fixed)
        if objection is None:
            return
        if is_fixed and found.model != self._model_name and self._models.move(address, found.model):
            raise WorkerLost(f"the worker at {address} serves {found.model}")
        if self._logged_incarnations.get(address) != found.incarnation:
            self._logged_incarnations[address] = found.incarnation
            verdict = "used anyway" if objection.is_used else "refused"
            logger.warning("the worker at %s is %s: %s", address, verdict, objection.reason)
        if not objection.is_used:
            raise WorkerLost(f"the worker at {address} is refused: {objection.reason}")

    def _current(self) -> WorkerIndex:
        if self._worker_index is None:
            self._worker_index = make_worker_index(self._connections.values())
            self._log_same_ids(self._worker_index)
        return self._worker_index

    def _log_same_ids(self, workers: WorkerIndex) -> None:
        """Log when several workers have the same id: hints and responses identify workers by it."""
        for worker_id, addresses in workers.same_ids.items():
            if worker_id not in self._logged_ids:
                logger.warning("the workers at %s all have the id %s", ", ".join(addresses), worker_id)
        self._logged_ids = set(workers.same_ids)

    def _notify(self) -> None:
        self._worker_index = None
        change, self._change = self._change, asyncio.Event()
        change.set()
