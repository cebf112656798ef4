"""Blocking work beside the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_in_thread(name: str, function: Callable[[], T]) -> "asyncio.Future[T]":
    """Runs `function` in a thread of its own, for work that may block long; called on the event loop."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(future)
