"""Waiting for a view on another thread: no view is missed or returned twice."""

import threading
import time

from baton.engine.parallel.group_view import GroupView, NewestView

NUM_VIEWS = 20_000


def view(epoch: int, store: str = "") -> GroupView:
    return GroupView(epoch, ("a/1",), 0, store)


def test_a_view_is_returned_until_it_was_seen() -> None:
    newest = NewestView()
    assert newest.epoch == 0
    assert newest.wait(None, 0) is None
    newest.show(view(1))
    assert newest.epoch == 1
    assert newest.wait(None, 0) == newest.wait(None, 0) == view(1)
    assert newest.wait(view(1), 0.01) is None
    newest.show(view(1, "h:1"))
    assert newest.wait(view(1), 0) == view(1, "h:1")


def test_no_view_is_missed() -> None:
    """A waiting thread gets the last view at once, whenever it is shown."""
    newest = NewestView()
    seen: list[GroupView] = []

    def follow() -> None:
        while not seen or seen[-1].epoch < NUM_VIEWS:
            found = newest.wait(seen[-1] if seen else None, 60)
            assert found is not None
            seen.append(found)

    thread = threading.Thread(target=follow)
    thread.start()
    begun_s = time.monotonic()
    for epoch in range(1, NUM_VIEWS + 1):
        newest.show(view(epoch))
    thread.join(30)
    assert not thread.is_alive()
    assert time.monotonic() - begun_s < 30
    epochs = [each.epoch for each in seen]
    assert epochs == sorted(set(epochs))


def test_a_wait_may_be_endless() -> None:
    newest = NewestView()
    threading.Timer(0.05, newest.show, (view(3),)).start()
    assert newest.wait(None, float("inf")) == view(3)
