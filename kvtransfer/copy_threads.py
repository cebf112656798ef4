"""Threads that copy, so that the event loop does not wait."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from baton.kvtransfer.threads import run_by
from baton.kvtransfer.transfers import Transfer


class CopyThreads:
    """Owns a transport's copying threads; they are started as they are needed."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._executor = ThreadPoolExecutor(max_threads, thread_name_prefix=f"baton-kv-{name}")

    def starter(self, copy: Callable[[Transfer], None]) -> Callable[[Transfer], "asyncio.Future[None]"]:
        """What `Transfers.run` needs in order to run `copy` in one of the threads."""

        def run(transfer: Transfer) -> None:
            transfer.check()  # it may have waited long for a thread
            copy(transfer)

        return lambda transfer: run_by(self._executor.submit, partial(run, transfer))

    def close(self) -> None:
        """Ends the threads; none may be copying any more."""
        self._executor.shutdown()
