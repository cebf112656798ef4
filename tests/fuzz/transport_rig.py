"""A transport among strangers: an event loop that runs while something is asked of it, and what strangers say."""

import asyncio
import gc
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import uvloop
from hypothesis import strategies as st

from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.handshake import PROTOCOL
from tests.unit.kvtransfer.kv_peers import Cluster, fill, holds

SHAPE = (16, 256)  # blocks of 2 KiB
BLOCK_BYTES = SHAPE[1] * 8
SEED = 3
PATIENCE_S = 10.0
DEADLINE_S = 0.25  # of connections and reads that get no answer


class Rig:
    """A transport of a backend, with a pool in which every block has a number of its own."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.cluster = self.run(self._start())
        self.address = json.loads(self.cluster.description.endpoints[backend])
        self._files = open_files()

    async def _start(self) -> Cluster:
        cluster = Cluster(self.backend, PoolIdentity("server", "model"), SHAPE, DEADLINE_S)
        fill(cluster.pool, SEED)
        return cluster

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What `work` returns; TimeoutError if it hangs."""

        async def bounded() -> Any:
            async with asyncio.timeout(PATIENCE_S):
                return await work

        return self._runner.run(bounded())

    def check_clean(self) -> None:
        """Fails if a thread, a socket or a block's quarantine is left of what there was."""
        end_s = time.monotonic() + PATIENCE_S
        gc.collect()  # an error's frames may hold a mapping
        while (left := open_files() - self._files) or serving_threads():
            assert time.monotonic() < end_s, (left, serving_threads())
            self.run(asyncio.sleep(0.01))
        assert len(self.cluster.transport.quarantine) == 0
        assert not self.cluster.transport.choices

    def hello(self) -> dict[str, Any]:
        """What a caller who is let in says."""
        return {
            "protocol": PROTOCOL,
            "key": self.address["key"],
            "incarnation": "server",
            "caller": "a caller",
            "fingerprint": "model",
            "block_bytes": BLOCK_BYTES,
        }

    def is_whole(self, except_for: tuple[int, ...] = ()) -> bool:
        """Whether every block has its own number still, these excepted."""
        blocks = set(range(SHAPE[0])) - set(except_for)
        return all(holds(self.cluster.pool, block, SEED, block) for block in blocks)

    def close(self) -> None:
        """Ends the transport."""
        self.run(self.cluster.end())
        self._runner.close()


def open_files() -> Counter[str]:
    """What this process has open, and how often."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own is gone by now
            found[os.readlink(f"/proc/self/fd/{name}").partition(":")[0]] += 1
    del found["/dev/null"]  # libuv keeps one in reserve
    return found


def serving_threads() -> list[str]:
    """Threads that answer callers."""
    return [thread.name for thread in threading.enumerate() if thread.name == "baton-kv-tcp-serve"]


def frame(message: Any) -> bytes:
    """A message of the greeting."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "little") + body


@dataclass(frozen=True)
class Talk:
    """What a stranger says: these bytes, in pieces cut at these places; then it ends, or says nothing more."""

    said: bytes
    cuts: tuple[int, ...]
    ends: bool

    def pieces(self) -> list[bytes]:
        """The bytes as they are sent."""
        places = [0, *sorted({cut % (len(self.said) + 1) for cut in self.cuts}), len(self.said)]
        return [self.said[start:end] for start, end in pairwise(places)]


def talks(said: st.SearchStrategy[bytes], ends: st.SearchStrategy[bool]) -> st.SearchStrategy[Talk]:
    """Ways to say it."""
    cuts = st.lists(st.integers(0, 5000), max_size=3).map(tuple)
    return st.builds(Talk, said, cuts, ends)
