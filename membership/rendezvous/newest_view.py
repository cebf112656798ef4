"""The group as an engine's thread is shown it, which waits for the next view of it."""

import threading

from baton.engine.parallel.group_view import GroupView


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
