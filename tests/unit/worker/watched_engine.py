"""Real engines under a watchdog, which hang on request: `... CHECKPOINT DIRECTORY [none|slow|engine|loop]...`.

Each runs in a fork of this process, which has imported torch for all of them, and writes its output to files.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.process.progress import ProgressReporter
from baton.worker.engine_host import EngineHost
from baton.worker.watchdog import Watchdog

MAX_STEP_S = 0.4


async def main(model: str, what: str) -> None:
    memory = SharedPool()
    engine = Engine(EngineConfig(model=model, kv_cache_memory_bytes=1 << 20, num_threads=1), memory.allocate)
    transport = create_transport("shared_memory", PoolIdentity("life", engine.fingerprint), memory, "127.0.0.1")
    host = EngineHost(engine, transport, MAX_STEP_S)
    host.start()

    async def set_ready(is_ready: bool) -> None:
        print("ready" if is_ready else "not ready", flush=True)

    watching = asyncio.create_task(Watchdog(host, lambda: False, ProgressReporter(None), set_ready).run())
    await asyncio.sleep(0)  # let it begin
    if what == "engine":
        await host.call(lambda _: time.sleep(60))
    elif what == "loop":
        time.sleep(60)  # noqa: ASYNC251  # on purpose
    elif what == "slow":
        await host.call(lambda _: time.sleep(0.75 * MAX_STEP_S))
        await asyncio.sleep(MAX_STEP_S)
    else:
        for _ in range(4):  # short steps, long in total
            await host.call(lambda _: time.sleep(MAX_STEP_S / 4))
        await asyncio.sleep(2 * MAX_STEP_S)  # idle for longer than a step may take
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await asyncio.sleep(2 * MAX_STEP_S)
    await host.stop()
    await transport.close()
    memory.close()


def run_forked(model: str, directory: Path, what: str) -> None:
    """Write WHAT.stdout, WHAT.stderr and, once the process has ended, its exit code to WHAT.code."""
    pid = os.fork()
    if pid == 0:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(directory / f"{what}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        asyncio.run(main(model, what))
        sys.exit()
    _, status = os.waitpid(pid, 0)
    (directory / f"{what}.code").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    for each in sys.argv[3:]:
        run_forked(sys.argv[1], Path(sys.argv[2]), each)
