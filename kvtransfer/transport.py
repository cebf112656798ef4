"""Connections to peers over one or several backends, and the reads in flight, with deadlines and quarantine."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from baton.kvtransfer.backend import Backend, Connection, Unavailable
from baton.kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, ignore_landed
from baton.kvtransfer.errors import PeerLost, TransferDeadline, TransportUnavailable
from baton.kvtransfer.local_pool import LocalPool, Units
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.refusals import Refusals
from baton.kvtransfer.transfers import Transfer

logger = logging.getLogger(__name__)

END_S = 10.0  # for aborted reads to end when the transport is closed


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A connected peer."""

    units: Units
    connection: Connection
    choice: TransportChoice
    reads: asyncio.Semaphore  # acquired until a read has ended


class Transport:
    """The KVTransport over backends that serve one pool; each peer is read over the first backend that reaches it.

    Only TransportUnavailable leads to the next backend: a peer that refuses or has ended would do the same over any
    other. A backend that did not reach a peer is not tried again for ten minutes, unless no other backend reaches it.
    A connection is opened once, however many callers request it, and owned until it is forgotten or breaks.
    """

    def __init__(
        self, identity: PoolIdentity, backends: Sequence[Backend | Unavailable], quarantine: Quarantine | None = None
    ) -> None:
        """`backends`: best first."""
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._identity = identity
        self._backends = list(backends)
        self._owned = [each for each in backends if not isinstance(each, Unavailable)]
        self._refusals = Refusals()
        self._pool: LocalPool | None = None
        self._peers: dict[PeerId, Peer] = {}
        self._opening: dict[PeerId, asyncio.Task[None]] = {}
        self._reads: dict[Transfer, asyncio.Future[None]] = {}
        self._is_closed = False
        for backend in backends:
            if isinstance(backend, Unavailable):
                logger.info("KV transport %s is not used: %s", backend.name, backend.reason)

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """The backend in use for each connected peer, and why it was chosen."""
        return {peer_id: peer.choice for peer_id, peer in self._peers.items()}

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Register the pool with every backend; of several, one that cannot is not used any more.

        Raises TransportUnavailable if no backend can, and OSError if a given port is not available.
        """
        local = LocalPool.of(pool, self._identity)
        endpoints: dict[str, bytes] = {}
        for index, backend in enumerate(self._backends):
            if isinstance(backend, Unavailable):
                continue
            try:
                endpoints[backend.name] = backend.register_pool(local)
            except TransportUnavailable as error:
                if len(self._backends) == 1:
                    raise
                logger.info("KV transport %s is not used: %s", backend.name, error)
                self._backends[index] = Unavailable(backend.name, str(error))
        if not endpoints:
            raise TransportUnavailable(f"no KV transport works here: {self._backends}")
        self._pool = local
        return local.describe(endpoints)

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Connect over the first backend that reaches the peer; see KVTransport."""
        units, peer_id = self._require_pool().units(peer), PeerId(peer.incarnation)
        if self._is_closed:
            raise PeerLost(f"peer {peer_id} cannot be connected: the transport was closed")
        known = self._peers.get(peer_id)
        if known is not None:
            if known.connection.is_open():
                return peer_id
            self._lose(peer_id, known.connection)
        opening = self._opening.get(peer_id) or self._begin(peer, units)
        try:
            await asyncio.shield(opening)  # others may wait for the same connection
        except asyncio.CancelledError:
            if opening.cancelled() and not _is_being_cancelled():
                raise PeerLost(f"peer {peer_id} was forgotten while it was being connected") from None
            raise
        finally:
            del opening  # its error references this frame from now on; see `threads`
        return peer_id

    def _begin(self, peer: PoolDescription, units: Units) -> "asyncio.Task[None]":
        peer_id = PeerId(peer.incarnation)
        task = asyncio.get_running_loop().create_task(self._open(peer, units))
        self._opening[peer_id] = task
        task.add_done_callback(lambda done: self._opened(peer_id, done))
        return task

    def _opened(self, peer: PeerId, task: "asyncio.Task[None]") -> None:
        self._opening.pop(peer, None)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if all waiters were cancelled

    async def _open(self, peer: PoolDescription, units: Units) -> None:
        """Connect over the first backend that reaches the peer."""
        peer_id = PeerId(peer.incarnation)
        refused: dict[str, str] = {}  # reason by backend
        for backend in self._backends:
            if isinstance(backend, Unavailable):
                refused[backend.name] = backend.reason
            elif (known := self._refusals.reason(backend.name, peer_id)) is not None:
                refused[backend.name] = known
            else:
                try:
                    return await self._open_over(backend, peer, units, refused)
                except TransportUnavailable as error:
                    if len(self._backends) == 1:
                        raise
                    refused[backend.name] = str(error)
                    self._refusals.note(backend.name, peer_id, str(error))
        self._refusals.drop(peer_id)
        raise TransportUnavailable(f"no KV transport reaches peer {peer_id}: {'; '.join(_in_words(refused))}")

    async def _open_over(
        self, backend: Backend, peer: PoolDescription, units: Units, refused: Mapping[str, str]
    ) -> None:
        """Connect over one backend; refused: why better ones do not reach the peer."""
        peer_id = PeerId(peer.incarnation)
        with suppress(TimeoutError):  # its frames reference the task, which will hold the error; see `threads`
            async with asyncio.timeout(backend.connect_deadline_s):
                connection = await backend.open(peer, units, self._lose)
                reason = "; ".join([connection.choice.reason, *_in_words(refused)])
                choice = TransportChoice(connection.choice.transport, reason)
                self._peers[peer_id] = Peer(units, connection, choice, asyncio.Semaphore(connection.max_reads))
                if len(self._backends) > 1:
                    _log_choice(peer_id, backend.costs, choice)
                return
        raise TransferDeadline(f"peer {peer_id} did not respond within {backend.connect_deadline_s} s")

    async def read(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = ignore_landed,
    ) -> None:
        """Read over the connection to the peer; see KVTransport."""
        known = self._peers.get(peer)
        if known is None:
            raise PeerLost(f"peer {peer} is not connected")
        known.units.check(peer, remote, local)
        if local:
            if known.reads.locked():
                deadline_s -= await self._wait_for_others(peer, known, deadline_s)
            else:
                await known.reads.acquire()
            try:
                await self._run(known, Transfer(peer, remote, local, deadline_s, landed))
            except PeerLost:
                self._lose(peer, known.connection)
                raise
        if not known.connection.is_open():
            self._lose(peer, known.connection)
        if self._peers.get(peer) is not known:
            raise PeerLost(f"peer {peer} ended during the read")

    async def _wait_for_others(self, peer: PeerId, known: Peer, deadline_s: float) -> float:
        """Wait until fewer reads from the peer run than it permits; return the seconds that this took."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(deadline_s):
                await known.reads.acquire()
        except TimeoutError as error:
            raise TransferDeadline(f"peer {peer} is still busy with earlier reads") from error
        if self._peers.get(peer) is not known:
            known.reads.release()
            raise PeerLost(f"peer {peer} was forgotten")
        return min(deadline_s, clock() - began_s)

    async def _run(self, known: Peer, transfer: Transfer) -> None:
        """Read, with the destination in quarantine until no write can land any more."""
        try:
            copying = known.connection.start(transfer)
        except BaseException:
            known.reads.release()
            raise
        if copying.done():  # copied at once
            known.reads.release()
            return
        blocks = known.units.local_blocks(transfer.local)
        self.quarantine.hold(blocks)
        self._reads[transfer] = copying
        finishing = transfer.finish(copying, partial(self._release, known, transfer, blocks))
        del copying  # its error will reference this frame; see `threads`
        await finishing

    def _release(self, known: Peer, transfer: Transfer, blocks: Sequence[int]) -> None:
        del self._reads[transfer]
        self.quarantine.release(blocks)
        known.reads.release()

    def forget(self, peer: PeerId) -> None:
        """Close the connection to a peer, open or being opened, and abort the reads over it; see KVTransport."""
        self._drop(peer, PeerLost(f"peer {peer} was forgotten"))

    def _lose(self, peer: PeerId, connection: Connection) -> None:
        """Handle a broken connection: if it is still the peer's, close it and abort the reads over it."""
        known = self._peers.get(peer)
        if known is not None and known.connection is connection:
            self._drop(peer, PeerLost(f"peer {peer} ended"))

    def _drop(self, peer: PeerId, reason: PeerLost) -> None:
        if peer in self._opening:
            self._opening[peer].cancel()
        known = self._peers.pop(peer, None)
        for transfer in [each for each in self._reads if each.peer == peer]:
            transfer.abort(reason)
        if known is not None:
            known.connection.close()

    async def close(self) -> None:
        """Close every connection and every backend; see KVTransport."""
        self._is_closed = True
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in list(self._peers):  # no read can start from now on
            self.forget(peer)
        for backend in self._owned:
            await backend.stop()
        if self._reads:
            _, hanging = await asyncio.wait(self._reads.values(), timeout=END_S)
            if hanging:
                logger.warning("%d reads of KV hang; their threads are leaked", len(hanging))
        for backend in self._owned:
            await backend.close()

    def _require_pool(self) -> LocalPool:
        if self._pool is None:
            raise ValueError("no pool was registered")
        return self._pool


def _is_being_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    caller = asyncio.current_task()
    return caller is not None and caller.cancelling() > 0


def _in_words(refused: Mapping[str, str]) -> list[str]:
    return [f"{name}: {reason}" for name, reason in refused.items()]


def _log_choice(peer: PeerId, costs: str, choice: TransportChoice) -> None:
    if costs:
        last_resort = "KV from peer %s is read over %s as a last resort, %s: %s"
        logger.warning(last_resort, peer, choice.transport, costs, choice.reason)
    else:
        logger.info("KV from peer %s is read over %s: %s", peer, choice.transport, choice.reason)
