"""What the simulated workers of these tests have received."""

from typing import Any

import pytest

from baton.simulation.workers.kv_pool import LinkReceive, SimulatedPool


@pytest.fixture
def receives(monkeypatch: pytest.MonkeyPatch) -> list[LinkReceive]:
    """Collect the receives of all simulated workers, in the order of their starts."""
    started: list[LinkReceive] = []
    receive = SimulatedPool.receive

    async def recorded(*args: Any) -> LinkReceive:
        started.append(await receive(*args))
        return started[-1]

    monkeypatch.setattr(SimulatedPool, "receive", recorded)
    return started
