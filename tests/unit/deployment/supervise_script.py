"""Supervise one small process until it is given up: `supervise_script.py LOG_DIR MODE`. Prints its events."""

import asyncio
import sys
from pathlib import Path

from baton.deployment.local.events import Event
from baton.deployment.local.supervisor import GaveUp, RestartPolicy, Supervisor
from tests.unit.deployment.recorder import child_spec


def show(event: Event) -> None:
    print(event, flush=True)


async def main() -> None:
    spec = child_spec(sys.executable, Path(sys.argv[1]), sys.argv[2])
    try:
        await Supervisor(spec, RestartPolicy(first_delay_s=0.01), show).run()
    except GaveUp as error:
        print(error)


asyncio.run(main())
