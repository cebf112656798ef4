"""One group at its rendezvous: its members, and when a new epoch begins.

The first epoch begins when the group has reached its size. After that, every change of members begins a new epoch
shortly afterwards with the members of that moment; so does a member's report that the current epoch is broken.

A rendezvous that has just started has no state. Members that join again send their newest epoch, which it adopts, and
it waits for that epoch's members. If all return in time, nothing has changed, and no new epoch begins. New members of
another fingerprint or size that joined ahead of them are refused.
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

MAX_REPLACED = 1024  # replaced lives that are kept, so that they are refused
MAX_REASON_CHARS = 200


class Group:
    """The sessions of a group's members and its epoch; used on one event loop."""

    def __init__(self, name: str, settings: RendezvousSettings) -> None:
        self._name = name
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, MemberSession] = {}  # by member name
        self._fingerprint, self._size = "", 0  # common to all members
        self._epoch: Epoch | None = None  # None: not begun yet, or no member is left
        self._last_number = 0
        self._is_broken = False
        self._replaced: deque[str] = deque(maxlen=MAX_REPLACED)  # incarnations
        self._timer: asyncio.TimerHandle | None = None
        self._changed_s = math.inf  # first change that is in no epoch yet; by the event loop's clock, like all times
        self._begun_s = -math.inf  # start of the current epoch
        self._waits_until_s = -math.inf  # end of the wait for members that may return
        self._empty_since_s = self._loop.time()

    def admit(self, join: Join) -> MemberSession:
        """Return a session for a new member; it replaces an earlier one with the same name. Raises Refused."""
        self._check(join)
        old = self._sessions.get(join.life.name)
        if old is not None and old.life.incarnation != join.life.incarnation:
            self._replaced.append(old.life.incarnation)
            old.close(_replaced(join.life))
        elif old is not None:
            old.close(Refused(grpc.StatusCode.ABORTED, "the member has joined again over another stream"))
        self._fingerprint, self._size = join.fingerprint, join.size
        session = self._sessions[join.life.name] = MemberSession(
            join.life, self._loop.time(), knows_epoch=join.last_epoch is not None
        )
        if join.last_epoch is not None:
            self._adopt(join.last_epoch)
        if self._epoch is not None and join.life in self._epoch.lives:
            session.show(self._epoch)
        self._consider()
        return session

    def remove(self, session: MemberSession, end: Refused | None = None) -> None:
        """Remove a member, unless another session has replaced this one."""
        session.close(end)
        if self._sessions.get(session.life.name) is session:
            del self._sessions[session.life.name]
            logger.info("group %s: removed %s%s", self._name, session.life, f": {end}" if end else "")
            self._consider()

    def set_store(self, session: MemberSession, number: int, address: str) -> None:
        """Record the store that the epoch's first member has opened. Stores of older epochs are ignored."""
        epoch = self._epoch
        if epoch is not None and epoch.number == number and epoch.lives[0] == session.life and self._has(session):
            self._set_epoch(Epoch(number, epoch.lives, address))

    def note_broken(self, session: MemberSession, number: int, reason: str) -> None:
        """Begin another epoch because a member reports this one as broken. Reports on older epochs are ignored."""
        epoch = self._epoch
        if epoch is not None and epoch.number == number and session.life in epoch.lives and self._has(session):
            shown = ascii(reason[:MAX_REASON_CHARS])
            logger.warning("group %s: epoch %d is broken according to %s: %s", self._name, number, session.life, shown)
            self._is_broken = True
            self._consider()

    def remove_silent(self, late_s: float) -> None:
        """Remove silent members. `late_s`: delay of this check, by which we may also have received messages late."""
        now_s = self._loop.time()
        timeout_s = self._settings.timeout_s
        if late_s > timeout_s:  # we were suspended for so long that members may have left, and will return
            self._waits_until_s = now_s + self._settings.return_s
            self._consider()
        for session in list(self._sessions.values()):
            session.heartbeat_at_s = min(session.heartbeat_at_s + late_s, now_s)
            if now_s - session.heartbeat_at_s > timeout_s:
                self.remove(
                    session, Refused(grpc.StatusCode.ABORTED, f"no heartbeat from the member for {timeout_s:g} s")
                )

    @property
    def num_members(self) -> int:
        """Number of members."""
        return len(self._sessions)

    @property
    def is_expired(self) -> bool:
        """Whether the group was without members for `forget_s`, so that it can be dropped."""
        return not self._sessions and self._loop.time() - self._empty_since_s > self._settings.forget_s

    def close(self) -> None:
        """End all sessions with UNAVAILABLE, so that members join elsewhere; no epoch begins any more."""
        sessions, self._sessions = self._sessions, {}
        self._set_timer(None)
        for session in sessions.values():
            session.close(Refused(grpc.StatusCode.UNAVAILABLE, "the rendezvous is shutting down"))

    def _check(self, join: Join) -> None:
        """Raise Refused if the member does not match the others. New members yield to one of an epoch: remove them."""
        if join.life.incarnation in self._replaced:
            raise _replaced(join.life)
        others = [session for name, session in self._sessions.items() if name != join.life.name]
        ours, theirs = (join.fingerprint, join.size), (self._fingerprint, self._size)
        if others and ours != theirs:
            if join.last_epoch is None or self._epoch is not None or any(other.knows_epoch for other in others):
                raise self._mismatch(ours, theirs)
            for other in others:
                self.remove(other, self._mismatch(theirs, ours))
        elif len(others) >= self._settings.max_members:
            limit = self._settings.max_members
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"group {self._name} is full with {limit} members")

    def _mismatch(self, member: tuple[str, int], group: tuple[str, int]) -> Refused:
        """Return the refusal of a member whose fingerprint and size are not the group's."""
        (fingerprint, size), (group_fingerprint, group_size) = member, group
        if fingerprint != group_fingerprint:
            text = f"the fingerprint is {fingerprint}, that of group {self._name} is {group_fingerprint}"
            end = "model, dtype or layout differ; use another group"
            return Refused(grpc.StatusCode.FAILED_PRECONDITION, f"{text}: {end}")
        text = f"the size is {size}, that of group {self._name} is {group_size}; all members need the same size"
        return Refused(grpc.StatusCode.FAILED_PRECONDITION, text)

    def _adopt(self, known: Epoch) -> None:
        """Adopt an epoch that a member knows if ours is older, or none."""
        current = self._epoch
        if known.number > self._last_number or (current is None and known.number == self._last_number):
            if current is None:
                self._waits_until_s = self._loop.time() + self._settings.return_s
            logger.info("group %s: adopted epoch %d of %d members", self._name, known.number, len(known.lives))
            self._last_number = known.number
            self._set_epoch(known)
        elif current is not None and known.store and current == Epoch(known.number, known.lives):
            self._set_epoch(known)  # its store was reported before this rendezvous restarted

    def _consider(self) -> None:
        """Schedule a new epoch if one is needed."""
        if not self._sessions:
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
            return 0 < self._size <= len(self._sessions)
        return self._is_broken or self._lives() != set(self._epoch.lives)

    def _due_s(self) -> float:
        """Return when the needed epoch begins."""
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
        self._set_epoch(Epoch(self._last_number, lives))

    def _set_epoch(self, epoch: Epoch) -> None:
        """Set the epoch and send it to its members."""
        self._epoch = epoch
        for session in self._sessions.values():
            if session.life in epoch.lives:
                session.show(epoch)

    def _set_timer(self, due_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_s is None else self._loop.call_at(due_s, self._begin)

    def _lives(self) -> set[Life]:
        return {session.life for session in self._sessions.values()}

    def _has(self, session: MemberSession) -> bool:
        return self._sessions.get(session.life.name) is session


def _replaced(life: Life) -> Refused:
    text = f"another process has joined as {life.name}; each member needs a unique name"
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, text)
