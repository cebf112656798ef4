"""One group at its rendezvous: who is there, and when a new epoch begins.

The first epoch begins when as many members are there as the group is to have. From then on every change begins a new
one a moment later, with all who are there then; so does a member's word that the present one is broken.

A rendezvous that has just started knows nothing. Members that were in a group before tell it of their newest epoch,
which is taken over, and who is in it is waited for: if all return in time, nothing has changed, and no epoch begins.
"""

import asyncio
import logging
import math
from collections import deque

import grpc

from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.epoch import Epoch, Life, in_rank_order
from baton.membership.rendezvous.join import Join, Refused
from baton.membership.rendezvous.member_session import MemberSession

logger = logging.getLogger(__name__)

MAX_REPLACED = 1024  # lives that are remembered as replaced
MAX_REASON_CHARS = 200


class Group:
    """Owns the sessions of a group and its epoch; to be used on one event loop."""

    def __init__(self, name: str, settings: RendezvousSettings) -> None:
        self._name = name
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._seats: dict[str, MemberSession] = {}  # by the members' names
        self._fingerprint, self._size = "", 0  # of all who are there
        self._epoch: Epoch | None = None  # None: not begun yet, or nobody is left
        self._last_number = 0
        self._is_broken = False
        self._replaced: deque[str] = deque(maxlen=MAX_REPLACED)  # incarnations
        self._timer: asyncio.TimerHandle | None = None
        self._changed_s = math.inf  # the first change that is in no epoch yet; the event loop's clock, as all these
        self._begun_s = -math.inf  # the present epoch
        self._waits_until_s = -math.inf  # for those that may return
        self._empty_since_s = self._loop.time()

    def admit(self, join: Join) -> MemberSession:
        """A session for a member; one under a name that is taken replaces who had it. Raises Refused."""
        self._check(join)
        old = self._seats.get(join.life.name)
        if old is not None and old.life.incarnation != join.life.incarnation:
            self._replaced.append(old.life.incarnation)
            old.close(_replaced(join.life))
        elif old is not None:
            old.close(Refused(grpc.StatusCode.ABORTED, "this life of the member has joined over another stream"))
        self._fingerprint, self._size = join.fingerprint, join.size
        session = self._seats[join.life.name] = MemberSession(join.life, self._loop.time())
        if join.last_epoch is not None:
            self._take_over(join.last_epoch)
        if self._epoch is not None and join.life in self._epoch.lives:
            session.show(self._epoch)
        self._consider()
        return session

    def remove(self, session: MemberSession, end: Refused | None = None) -> None:
        """The member is out, unless another has its session already."""
        session.close(end)
        if self._seats.get(session.life.name) is session:
            del self._seats[session.life.name]
            logger.info("group %s: %s is out%s", self._name, session.life, f": {end}" if end else "")
            self._consider()

    def set_store(self, session: MemberSession, number: int, address: str) -> None:
        """The epoch's first member has opened its store; an older epoch's is of no use to anybody."""
        epoch = self._epoch
        if epoch is not None and epoch.number == number and epoch.lives[0] == session.life and self._has(session):
            self._show(Epoch(number, epoch.lives, address))

    def note_broken(self, session: MemberSession, number: int, reason: str) -> None:
        """A member wants another epoch than this one; of an older one it need not be said."""
        epoch = self._epoch
        if epoch is not None and epoch.number == number and session.life in epoch.lives and self._has(session):
            shown = ascii(reason[:MAX_REASON_CHARS])
            logger.warning("group %s: epoch %d is broken, says %s: %s", self._name, number, session.life, shown)
            self._is_broken = True
            self._consider()

    def look(self, late_s: float) -> None:
        """Ends the membership of who is silent; we ourselves were late to look, and to hear, by so much."""
        now_s = self._loop.time()
        timeout_s = self._settings.timeout_s
        if late_s > timeout_s:  # we were away for so long that members may have given us up, and will return
            self._waits_until_s = now_s + self._settings.return_s
            self._consider()
        for session in list(self._seats.values()):
            session.heard_s = min(session.heard_s + late_s, now_s)
            if now_s - session.heard_s > timeout_s:
                self.remove(session, Refused(grpc.StatusCode.ABORTED, f"the member was silent for {timeout_s:g} s"))

    @property
    def num_members(self) -> int:
        """Members that are there."""
        return len(self._seats)

    @property
    def is_forgotten(self) -> bool:
        """Whether nobody was there for so long that it need not be kept."""
        return not self._seats and self._loop.time() - self._empty_since_s > self._settings.forget_s

    def close(self) -> None:
        """The rendezvous ends: no epoch begins any more, and members are told to go elsewhere."""
        sessions, self._seats = self._seats, {}
        self._set_timer(None)
        for session in sessions.values():
            session.close(Refused(grpc.StatusCode.UNAVAILABLE, "the rendezvous ends"))

    def _check(self, join: Join) -> None:
        """Raises Refused if the member does not belong to those who are there."""
        precondition = grpc.StatusCode.FAILED_PRECONDITION
        if join.life.incarnation in self._replaced:
            raise _replaced(join.life)
        others = self._seats.keys() - {join.life.name}
        if not others:
            return
        if len(others) >= self._settings.max_members:
            limit = self._settings.max_members
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"group {self._name} has its {limit} members already")
        if join.fingerprint != self._fingerprint:
            text = f"the fingerprint is {join.fingerprint}, that of group {self._name} is {self._fingerprint}"
            raise Refused(
                precondition, f"{text}: model, dtype or layout differ; such members need a group of their own"
            )
        if join.size != self._size:
            raise Refused(
                precondition, f"the size is {join.size}, that of group {self._name} {self._size}; all must say the same"
            )

    def _take_over(self, known: Epoch) -> None:
        """A member knows this epoch; ours may be older, or none."""
        ours = self._epoch
        if known.number > self._last_number or (ours is None and known.number == self._last_number):
            if ours is None:
                self._waits_until_s = self._loop.time() + self._settings.return_s
            logger.info("group %s: epoch %d is known to %d members", self._name, known.number, len(known.lives))
            self._last_number = known.number
            self._show(known)
        elif ours is not None and known.store and ours == Epoch(known.number, known.lives):
            self._show(known)  # its store was told to us in an earlier life

    def _consider(self) -> None:
        """Decides whether a new epoch is to begin, and when."""
        if not self._seats:
            self._epoch, self._is_broken = None, False
            self._empty_since_s = self._loop.time()
        if self._needs_epoch():
            self._changed_s = min(self._changed_s, self._loop.time())
            self._set_timer(self._due_s())
        else:
            self._changed_s = math.inf
            self._set_timer(None)

    def _needs_epoch(self) -> bool:
        if self._epoch is None:
            return 0 < self._size <= len(self._seats)
        return self._is_broken or self._lives() != set(self._epoch.lives)

    def _due_s(self) -> float:
        """When the epoch begins that is needed."""
        due_s = self._changed_s + self._settings.settle_s
        if self._is_broken:
            due_s = max(due_s, self._begun_s + self._settings.broken_interval_s)
        if self._epoch is not None and not self._lives().issuperset(self._epoch.lives):
            due_s = max(due_s, self._waits_until_s)
        return due_s

    def _begin(self) -> None:
        self._timer = None
        self._last_number += 1
        self._is_broken = False
        self._changed_s, self._begun_s = math.inf, self._loop.time()
        lives = in_rank_order(self._lives())
        logger.info("group %s: epoch %d with %s", self._name, self._last_number, ", ".join(map(str, lives)))
        self._show(Epoch(self._last_number, lives))

    def _show(self, epoch: Epoch) -> None:
        """This is the epoch; who is in it hears of it."""
        self._epoch = epoch
        for session in self._seats.values():
            if session.life in epoch.lives:
                session.show(epoch)

    def _set_timer(self, due_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_s is None else self._loop.call_at(due_s, self._begin)

    def _lives(self) -> set[Life]:
        return {session.life for session in self._seats.values()}

    def _has(self, session: MemberSession) -> bool:
        return self._seats.get(session.life.name) is session


def _replaced(life: Life) -> Refused:
    text = f"another life of {life.name} has joined; each member needs a name of its own"
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, text)
