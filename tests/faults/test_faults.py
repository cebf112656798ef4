"""Each fault once, in a phase taken by chance; `python -m tests.faults` has them by the thousand."""

import random
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.chaos import Chaos, chaos
from tests.faults.faults import FAULTS, Fault
from tests.faults.places import Place, bad_links, many_machines, one_machine, why_not
from tests.faults.row import Row

SEED = 7
NUM_CANCELS = 60


async def _made(place: Place, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    """One cluster for all faults of a place; every try leaves it whole."""
    if reason := why_not(place):
        pytest.skip(reason)
    directory: Path = tmp_path_factory.mktemp("faults")
    async with chaos(place, directory, SEED, num_prompt_tokens=500, num_output_tokens=24) as made:
        yield made
        row = Row("all", "logs", "")
        made.read_logs(row)
        assert row.is_clean, row.notes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_one_machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async for made in _made(one_machine, tmp_path_factory):
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def with_bad_links(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async for made in _made(bad_links, tmp_path_factory):
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_many_machines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async for made in _made(many_machines, tmp_path_factory):
        yield made


def _of(place: Place) -> pytest.MarkDecorator:
    faults = [fault for fault in FAULTS if fault.place is place and not fault.is_long]
    return pytest.mark.parametrize("fault", faults, ids=lambda fault: f"{fault.role} {fault.name}")


async def _assert_loses_nothing(made: Chaos, fault: Fault) -> None:
    phase = random.Random(zlib.crc32(f"{fault.role} {fault.name}".encode())).choice(fault.phases)
    row = Row(fault.role, fault.name, phase)
    await made.run_try(fault, row)
    assert row.is_clean, row.notes
    assert row.tries == 1


@pytest.mark.asyncio(loop_scope="module")
@_of(one_machine)
async def test_nothing_is_lost(on_one_machine: Chaos, fault: Fault) -> None:
    await _assert_loses_nothing(on_one_machine, fault)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_rolling_restart_loses_nothing(on_one_machine: Chaos) -> None:
    row = Row("all", "rolling restart", "")
    await on_one_machine.run_rolling_restart(row, num_at_once=2)  # more take the processor from who starts
    assert row.is_clean, row.notes
    assert row.tries == 6
    assert row.disturbed > row.tries


@pytest.mark.asyncio(loop_scope="module")
async def test_many_cancels_leave_nothing_behind(on_one_machine: Chaos) -> None:
    row = Row("client", "cancels", "")
    await on_one_machine.run_cancel_storm(row, NUM_CANCELS)
    assert row.is_clean, row.notes
    assert row.tries == NUM_CANCELS


@pytest.mark.asyncio(loop_scope="module")
@_of(bad_links)
async def test_bad_links_and_a_lost_registry_lose_nothing(with_bad_links: Chaos, fault: Fault) -> None:
    await _assert_loses_nothing(with_bad_links, fault)


@pytest.mark.asyncio(loop_scope="module")
@_of(many_machines)
async def test_cables_that_are_pulled_out_lose_nothing(on_many_machines: Chaos, fault: Fault) -> None:
    await _assert_loses_nothing(on_many_machines, fault)
