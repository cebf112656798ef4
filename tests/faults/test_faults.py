"""Each fault once, in a phase taken by chance; `python -m tests.faults` has them by the thousand."""

import random
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.chaos import Chaos, chaos
from tests.faults.faults import FAULTS, Fault
from tests.faults.row import Row

SEED = 7


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    """One cluster for all; every try leaves it whole."""
    directory: Path = tmp_path_factory.mktemp("faults")
    async with chaos(directory, SEED, num_prompt_tokens=500, num_output_tokens=24) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.role} {fault.name}")
async def test_nothing_is_lost(made: Chaos, fault: Fault) -> None:
    phase = random.Random(zlib.crc32(f"{fault.role} {fault.name}".encode())).choice(fault.phases)
    row = Row(fault.role, fault.name, phase)
    await made.run_try(fault, row)
    assert row.is_clean, row.notes
    assert row.tries == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_a_rolling_restart_loses_nothing(made: Chaos) -> None:
    row = Row("all", "rolling restart", "")
    await made.run_rolling_restart(row)
    assert row.is_clean, row.notes
    assert row.tries == 6
    assert row.disturbed > row.tries
