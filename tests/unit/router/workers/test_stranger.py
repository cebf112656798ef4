"""Attempts to connect to addresses that the router was never connected to."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace

import grpc
import pytest

from baton.membership.registry.base import Listener, Member, RegistryView
from baton.membership.registry.memory import MemoryRegistry
from baton.router.workers import stranger as strangers
from baton.router.workers.stranger import AttemptSlots, Stranger
from baton.rpc.tls import Plaintext
from tests.unit.router.rigs.pools import member_of, ready, running_pool
from tests.unit.router.rigs.running_router import until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

NUM_SLOTS = 3
NUM_FALSE = 50
FOREVER_S = 3600.0


class ListedRegistry(MemoryRegistry):
    """A registry that lists what the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.views: asyncio.Queue[RegistryView] = asyncio.Queue()

    async def follow(self, listener: Listener) -> None:
        """Report one view after the other, until cancelled."""
        while True:
            listener(await self.views.get())

    def list(self, *members: Member) -> None:
        """Replace the list."""
        self.views.put_nowait(RegistryView(members, is_listed=True))


@pytest.fixture(autouse=True)
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few slots, which failed attempts keep for the whole test."""
    monkeypatch.setattr(strangers, "NUM_SLOTS", NUM_SLOTS)
    monkeypatch.setattr(strangers, "FIRST_TIMEOUT_S", FOREVER_S)
    monkeypatch.setattr(strangers, "LAST_TIMEOUT_S", FOREVER_S)


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the addresses of new channels."""
    made: list[str] = []
    channel = Plaintext.channel

    def counted(self: Plaintext, address: str) -> grpc.aio.Channel:
        made.append(address)
        return channel(self, address)

    monkeypatch.setattr(Plaintext, "channel", counted)
    return made


@contextmanager
def silent_address() -> Iterator[str]:
    """Yield an address at which connections are not accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def false_members(worker: ScriptedWorker, address: str, count: int = NUM_FALSE) -> list[Member]:
    """Return members like the worker, each at another host with the address's port."""
    port = address.rsplit(":", 1)[1]
    like = member_of(worker)
    names = [f"false-{number}" for number in range(count)]
    return [
        replace(like, worker_id=name, incarnation=name, address=f"127.0.1.{number + 1}:{port}")
        for number, name in enumerate(names)
    ]


async def taken(slots: AttemptSlots, count: int) -> None:
    for _ in range(count):
        await slots.take(0)


async def queued(slots: AttemptSlots, num_failures: int) -> asyncio.Task[None]:
    """Start to wait for a slot."""
    task = asyncio.create_task(slots.take(num_failures))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_the_fewest_failures_go_first_and_then_the_longest_wait() -> None:
    slots = AttemptSlots()
    await taken(slots, NUM_SLOTS)
    waits = [await queued(slots, failures) for failures in (strangers.MAX_FAILURES, 1, 0, 0)]
    for num_done, expected in enumerate((waits[2], waits[3], waits[1], waits[0]), start=1):
        slots.give_back()
        await expected
        assert sum(each.done() for each in waits) == num_done


async def test_one_slot_in_four_goes_to_the_longest_wait() -> None:
    slots = AttemptSlots()
    await taken(slots, NUM_SLOTS)
    failed = await queued(slots, 3)
    for num_freed in range(1, strangers.FAIR_EVERY + 1):
        await queued(slots, 0)  # an address that is listed anew, and so on without end
        await queued(slots, 0)
        slots.give_back()
        await asyncio.sleep(0)
        assert failed.done() == (num_freed == strangers.FAIR_EVERY)


async def test_pauses_are_long_only_while_many_addresses_wait() -> None:
    slots = AttemptSlots()
    await taken(slots, NUM_SLOTS)
    assert slots.max_pause_s == strangers.MIN_BACKOFF_LIMIT_S
    waits = [await queued(slots, 0) for _ in range(NUM_SLOTS * 10)]
    assert slots.max_pause_s == strangers.MIN_BACKOFF_LIMIT_S + 10
    waits += [await queued(slots, 1) for _ in range(NUM_SLOTS * 60)]
    assert slots.max_pause_s == strangers.LAST_BACKOFF_S
    for each in waits:
        each.cancel()


async def test_a_cancelled_wait_takes_no_slot() -> None:
    slots = AttemptSlots()
    await taken(slots, NUM_SLOTS)
    cancelled, served_and_cancelled, last = [await queued(slots, 0) for _ in range(3)]
    cancelled.cancel()
    slots.give_back()  # to the second, which is cancelled before it runs
    served_and_cancelled.cancel()
    await last
    await asyncio.gather(cancelled, served_and_cancelled, return_exceptions=True)
    assert cancelled.cancelled()
    assert served_and_cancelled.cancelled()
    (await queued(slots, 0)).cancel()  # none was given twice


async def test_a_failed_attempt_keeps_its_slot_and_a_worker_gives_it_back() -> None:
    slots = AttemptSlots()
    for _ in range(NUM_SLOTS - 1):
        failing = Stranger(slots)
        await failing.begin()
        failing.fail()
    for _ in range(5):
        answering = Stranger(slots)
        await answering.begin()
        answering.answered()
        answering.fail()  # later, and without a slot
    last = Stranger(slots)
    await last.begin()
    last.fail()
    (await queued(slots, 0)).cancel()


async def test_timeouts_grow_with_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "FIRST_TIMEOUT_S", 1.0)
    monkeypatch.setattr(strangers, "LAST_TIMEOUT_S", 5.0)
    stranger, timeouts = Stranger(AttemptSlots()), []
    for _ in range(20):
        timeouts.append(stranger.timeout_s)
        stranger.fail()
    assert timeouts == [1.0, 2.0, 4.0] + [5.0] * 17


async def test_false_members_take_a_few_attempts_and_nothing_from_a_worker_that_was_connected(
    channels: list[str],
) -> None:
    registry = ListedRegistry()
    async with AsyncExitStack() as stack, running_pool(registry) as pool:
        address = stack.enter_context(silent_address())
        worker = ScriptedWorker()
        stack.push_async_callback(worker.stop)
        await worker.start()
        registry.list(member_of(worker))
        await until(lambda: ready(pool) == {worker.address})
        false = false_members(worker, address)
        registry.list(member_of(worker), *false)
        await until(lambda: len(pool.connections) == 1 + NUM_FALSE)
        await worker.stop()
        await until(lambda: ready(pool) == set())
        await worker.start()
        registry.list(member_of(worker), *false)
        await until(lambda: ready(pool) == {worker.address})  # all slots are taken
        assert [each.address for each in pool.reached] == [worker.address]
        assert sum(each != worker.address for each in channels) == NUM_SLOTS


async def test_an_unreached_address_is_removed_once_it_is_not_listed(channels: list[str]) -> None:
    registry = ListedRegistry()
    with silent_address() as address:
        async with running_pool(registry) as pool:
            registry.list(*false_members(ScriptedWorker(), address))
            await until(lambda: len(channels) == NUM_SLOTS)
            registry.list()
            await until(lambda: not pool.view.members)
            assert not pool.connections
            await until(lambda: not [each for each in asyncio.all_tasks() if each.get_name().startswith("worker ")])


async def test_a_new_incarnation_at_an_unreached_address_has_no_past_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "FIRST_BACKOFF_S", FOREVER_S)
    monkeypatch.setattr(strangers, "LAST_BACKOFF_S", FOREVER_S)
    registry, worker = ListedRegistry(), ScriptedWorker()
    await worker.start()
    await worker.stop()
    async with running_pool(registry) as pool:
        registry.list(before := member_of(worker))
        await until(lambda: bool(pool.connections) and bool(pool.connections[0].last_error))
        await worker.start()
        registry.list(before, member_of(worker))
        await until(lambda: ready(pool) == {worker.address})
    await worker.stop()


async def test_a_given_address_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "NUM_SLOTS", 0)
    worker = ScriptedWorker()
    await worker.start()
    async with running_pool(MemoryRegistry([worker.address])) as pool:
        await until(lambda: ready(pool) == {worker.address})
    await worker.stop()
