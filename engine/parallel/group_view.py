"""Membership of a group of ranks, as an engine sees it: plain data and a Protocol, no torch, no gRPC."""

import threading
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GroupView:
    """Group in one epoch; every change of members begins a new epoch."""

    epoch: int  # increases
    members: tuple[str, ...]  # names of the ranks' incarnations, by rank
    rank: int  # this rank
    store: str = ""  # host:port of the epoch's store; empty until rank 0 has opened it


class Membership(Protocol):
    """Client of the group's membership service; all methods are called on the engine's thread."""

    @property
    def epoch(self) -> int:
        """Newest known epoch, 0 before the first. If it is newer than the engine's, the engine must re-form."""
        ...

    def join(self, fingerprint: str) -> None:
        """Announce that this rank has loaded and may become a member; idempotent.

        fingerprint: equal on ranks that can be members of one group.
        """
        ...

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        """Wait for a view other than `seen` (a new epoch, or its store's address) and return it; None on timeout."""
        ...

    def publish_store(self, epoch: int, address: str) -> None:
        """Publish the address of the epoch's store to all members; only rank 0 calls this."""
        ...

    def report_broken(self, epoch: int, reason: str) -> None:
        """Request a new epoch because the members cannot continue together, even if all are alive."""
        ...

    def wake(self, epoch: int, round_number: int) -> None:
        """Wake all other members, which may be asleep, because a step has begun. Does not wait."""
        ...


class NewestView:
    """Newest view: set on one thread, read and awaited on any other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._view: GroupView | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the newest view; 0 before the first."""
        view = self._view
        return 0 if view is None else view.epoch

    def show(self, view: GroupView) -> None:
        """Set the newest view and wake all waiting threads."""
        with self._changed:
            self._view = view
            self._changed.notify_all()

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        """Wait for a view other than `seen` and return it; None on timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._view != seen, min(timeout_s, threading.TIMEOUT_MAX))
            return self._view if self._view != seen else None
