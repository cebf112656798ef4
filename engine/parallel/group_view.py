"""Who is in an expert-parallel group, as an engine needs to know it; plain data and a Protocol, no torch, no gRPC."""

import threading
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group in one of its epochs: every change of members begins a new one."""

    epoch: int  # grows
    members: tuple[str, ...]  # names of the ranks' lives, in the order of their ranks
    rank: int  # our place among them
    store: str = ""  # host:port of the epoch's store; empty until the first member has opened it


class Membership(Protocol):
    """What an engine asks of whoever knows the group; its methods are called on the engine's thread."""

    @property
    def epoch(self) -> int:
        """The newest epoch that is known; one that is past the engine's means: form anew. 0 before the first."""
        ...

    def join(self) -> None:
        """This rank is loaded, and may be one of the members from now on; may be called again."""
        ...

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        """The newest view as soon as it is another one than `seen` (a new epoch, or its store); None if not in time."""
        ...

    def publish_store(self, epoch: int, address: str) -> None:
        """Tells all members of the epoch where its store is; only the first member calls it."""
        ...

    def report_broken(self, epoch: int, reason: str) -> None:
        """The epoch's members cannot go on together: a new one is wanted, even if all of them live."""
        ...

    def wake(self, epoch: int, round_number: int) -> None:
        """Tells all other members, which may be asleep, that a step has begun. Does not wait."""
        ...


class NewestView:
    """Owns the newest view: shown on one thread, looked at and waited for on any other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._view: GroupView | None = None

    @property
    def epoch(self) -> int:
        """Of the newest view; 0 before the first."""
        view = self._view
        return 0 if view is None else view.epoch

    def show(self, view: GroupView) -> None:
        """This is the newest one."""
        with self._changed:
            self._view = view
            self._changed.notify_all()

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        """The newest view as soon as it is another one than `seen`; None if not in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._view != seen, min(timeout_s, threading.TIMEOUT_MAX))
            return self._view if self._view != seen else None
