"""A transport for fuzzers without an event loop, and the bytes that hostile peers send to it."""

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
DEADLINE_S = 0.25  # for connections and reads without a response


class Rig:
    """A transport with a pool whose blocks differ."""

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
        """Run `work` on the event loop and return its result. Raises TimeoutError if it hangs."""

        async def bounded() -> Any:
            async with asyncio.timeout(PATIENCE_S):
                return await work

        return self._runner.run(bounded())

    def check_clean(self) -> None:
        """Fail if a thread, a socket or a quarantined block is left over."""
        end_s = time.monotonic() + PATIENCE_S
        gc.collect()  # an error's frames may hold a mapping
        while (left := open_files() - self._files) or serving_threads():
            assert time.monotonic() < end_s, (left, serving_threads())
            self.run(asyncio.sleep(0.01))
        assert len(self.cluster.transport.quarantine) == 0
        assert not self.cluster.transport.choices

    def hello(self) -> dict[str, Any]:
        """Return a valid Hello."""
        return {
            "protocol": PROTOCOL,
            "key": self.address["key"],
            "incarnation": "server",
            "caller": "a caller",
            "fingerprint": "model",
            "block_bytes": BLOCK_BYTES,
        }

    def is_whole(self, except_for: tuple[int, ...] = ()) -> bool:
        """Return whether every block except these is unchanged."""
        blocks = set(range(SHAPE[0])) - set(except_for)
        return all(holds(self.cluster.pool, block, SEED, block) for block in blocks)

    def close(self) -> None:
        """Close the transport and the event loop."""
        self.run(self.cluster.end())
        self._runner.close()


def open_files() -> Counter[str]:
    """Count the open files of this process by target."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            found[os.readlink(f"/proc/self/fd/{name}").partition(":")[0]] += 1
    del found["/dev/null"]  # libuv keeps a spare descriptor
    return found


def serving_threads() -> list[str]:
    """Return the names of threads that serve callers."""
    return [thread.name for thread in threading.enumerate() if thread.name == "baton-kv-tcp-serve"]


def frame(message: Any) -> bytes:
    """Encode a message of the handshake."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "little") + body


@dataclass(frozen=True)
class Talk:
    """The bytes that a hostile peer sends, where they are split, and whether it then closes or stays silent."""

    content: bytes
    cuts: tuple[int, ...]
    ends: bool

    def pieces(self) -> list[bytes]:
        """Return the bytes in the pieces in which they are sent."""
        places = [0, *sorted({cut % (len(self.content) + 1) for cut in self.cuts}), len(self.content)]
        return [self.content[start:end] for start, end in pairwise(places)]


def talks(content: st.SearchStrategy[bytes], ends: st.SearchStrategy[bool]) -> st.SearchStrategy[Talk]:
    """Generate ways to send the bytes."""
    cuts = st.lists(st.integers(0, 5000), max_size=3).map(tuple)
    return st.builds(Talk, content, cuts, ends)
