"""Each fault once, in a random phase; `python -m tests.faults` runs thousands."""

import random
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.chaos import Chaos, chaos
from tests.faults.faults import FAULTS, Fault
from tests.faults.mixed_weights import mixed_weights
from tests.faults.ongoing import Attack, attacks_on, run_attack, run_router_losses
from tests.faults.places import Place, bad_links, many_machines, one_machine, resuming, why_not
from tests.faults.row import Row

SEED = 7
NUM_CANCELS = 60
NUM_LOSSES = 4
MAX_ROUNDS = 5
RARE = (
    "killed draining", "killed, disks full", "killed draining, streams resumed", "killed, with TCP and Redis",
    "killed with a prefill worker", "killed with a decode worker, streams resumed", "restarted, streams resumed",
    "sends chunks of a byte", "does not read", "sends bodies byte by byte", "aborts uploads", "late, streams resumed",
    "killed, streams resumed",
)  # fmt: skip


async def _made(place: Place, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    """Start one cluster for all faults of a place; every try restores it."""
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def with_resuming_clients(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async for made in _made(resuming, tmp_path_factory):
        yield made


def _of(place: Place) -> pytest.MarkDecorator:
    faults = [
        pytest.param(fault, marks=[pytest.mark.slow] * (fault.name in RARE), id=f"{fault.role} {fault.name}")
        for fault in FAULTS
        if fault.place is place and not fault.is_long
    ]
    return pytest.mark.parametrize("fault", faults)


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


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_rolling_restart_loses_nothing(on_one_machine: Chaos) -> None:
    row = Row("all", "rolling restart", "")
    await on_one_machine.run_rolling_restart(row, num_at_once=2)  # more would slow down the processes that start
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
@_of(resuming)
async def test_streams_resume(with_resuming_clients: Chaos, fault: Fault) -> None:
    await _assert_loses_nothing(with_resuming_clients, fault)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_routers_lost_in_turn_lose_no_stream(with_resuming_clients: Chaos) -> None:
    row = Row("router", "lost in turn", "")
    for _ in range(MAX_ROUNDS):
        await run_router_losses(with_resuming_clients, row, NUM_LOSSES, num_at_once=2)
        assert row.is_clean, row.notes
        if row.disturbed:  # on a busy machine the streams may have stood elsewhere at each loss
            break
    assert row.tries % NUM_LOSSES == 0
    assert row.disturbed > 0


def _attacks_on(place: Place) -> pytest.MarkDecorator:
    attacks = [
        pytest.param(attack, marks=[pytest.mark.slow] * (attack.name in RARE), id=f"{attack.role} {attack.name}")
        for attack in attacks_on(place)
        if not attack.is_long
    ]
    return pytest.mark.parametrize("attack", attacks)


async def _assert_disturbs_no_stream(made: Chaos, attack: Attack) -> None:
    row = Row(attack.role, attack.name, "")
    await run_attack(made, attack, row, num_at_once=2)
    assert row.is_clean, row.notes
    assert row.disturbed >= 2


@pytest.mark.asyncio(loop_scope="module")
@_attacks_on(one_machine)
async def test_attacks_disturb_no_stream(on_one_machine: Chaos, attack: Attack) -> None:
    await _assert_disturbs_no_stream(on_one_machine, attack)


@pytest.mark.asyncio(loop_scope="module")
@_attacks_on(bad_links)
async def test_attacks_on_the_registry_disturb_no_stream(with_bad_links: Chaos, attack: Attack) -> None:
    await _assert_disturbs_no_stream(with_bad_links, attack)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@_of(many_machines)
async def test_unplugged_cables_lose_nothing(on_many_machines: Chaos, fault: Fault) -> None:
    await _assert_loses_nothing(on_many_machines, fault)


@pytest.mark.slow
async def test_a_half_upgraded_cluster_does_not_mix_models(tmp_path: Path) -> None:
    row = Row("workers", "half of them upgraded", "")
    async with mixed_weights(tmp_path, SEED, num_prompt_tokens=300, num_output_tokens=24) as mixed:
        await mixed.run_try(row)
    assert row.is_clean, row.notes
    assert row.disturbed == 16
